#include "emit/megatron_model.h"

#include <gmock/gmock.h>

#include "emit/decoder_model.h"
#include "models/test_models.h"
#include "ops/builder.h"

namespace meshwright {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DecoderReading read(const Graph& graph) { return read_decoder(graph, find_segments(graph)); }

TEST(LayerPattern, IsShortAndRepeats) {
  EXPECT_EQ(layer_pattern({1}), "([1])");
  EXPECT_EQ(layer_pattern({0, 0, 0, 1, 1}), "([0]*3+[1]*2)");
  EXPECT_EQ(layer_pattern({1, 0, 1, 0, 1, 0}), "([1]+[0])*3");
  EXPECT_EQ(layer_pattern({1, 1, 1}), "([1])*3");
}

TEST(DecoderModel, IsReadOffTheGraph) {
  const DecoderReading reading = read(test_model({}));
  ASSERT_THAT(reading.faults, IsEmpty());
  const DecoderModel& m = reading.model;
  EXPECT_EQ(m.layers.size(), 4u);
  EXPECT_EQ(m.vocab, 1000);
  EXPECT_FALSE(m.tied);
  EXPECT_EQ(m.layers[3].attention.heads, 8);
  EXPECT_EQ(m.layers[3].attention.kv_heads, 4);
  EXPECT_EQ(m.layers[3].attention.rotary_dim, 8);
  EXPECT_EQ(m.layers[3].mlp->act, "silu");
  EXPECT_TRUE(read(test_model({.tied = true})).model.tied);
  const DecoderModel moe = read(test_model({.experts = 8, .top_k = 2})).model;
  EXPECT_EQ(moe.layers[0].experts->experts, 8);
  EXPECT_EQ(moe.layers[0].experts->top_k, 2);
}

/// A graph whose layers are `body(builder, stream)`.
template <class Body>
Graph layers_of(int count, Body&& body) {
  GraphBuilder b("test");
  const Dim batch{"batch", 2, 1}, seq{"seq", 16, 1};
  const ValueId ids = b.input("ids", {DType::kI64, {batch, seq}});
  const ValueId labels = b.input("labels", {DType::kI64, {batch, seq}});
  const ValueId table = b.parameter("embed.weight", {{"vocab", 100, 1}, {"hidden", 32, 1}});
  ValueId x = b.op("embedding", "embed", {ids, table});
  for (int i = 0; i < count; ++i) {
    const auto scope = b.scope("layers." + std::to_string(i));
    x = body(b, x);
  }
  x = b.rms_norm("norm", x);
  b.op("cross_entropy", "loss", {b.op("linear", "head", {x, table}), labels});
  return b.finish();
}

ValueId attend(GraphBuilder& b, ValueId x, bool causal = true) {
  const auto heads = [&](const char* name) {
    return b.op("reshape", std::string(name) + "_heads",
                {b.linear(name, x, {"heads", 32, 8}, false)},
                {{"pattern", std::string("b s (h d) -> b s h d")},
                 {"sizes", std::string("d=8")},
                 {"names", std::string("d=head_dim")}});
  };
  const ValueId y =
      b.op("attention", "core", {heads("q"), heads("k"), heads("v")}, {{"causal", causal}});
  const ValueId flat =
      b.op("reshape", "merge", {y}, {{"pattern", std::string("b s h d -> b s (h d)")}});
  return b.linear("o", flat, {"hidden", 32, 1}, false);
}

ValueId feed(GraphBuilder& b, ValueId x) {
  return b.linear("down", b.op("gelu", "act", {b.linear("up", x, {"ffn", 64, 1}, false)}),
                  {"hidden", 32, 1}, false);
}

TEST(DecoderModel, EveryOperatorMustHaveItsPlace) {
  const auto fault = [](auto body) {
    const auto faults = read(layers_of(2, body)).faults;
    EXPECT_EQ(faults.size(), 1u);  // Equal layers are reported once.
    return faults.empty() ? std::string() : faults[0];
  };
  EXPECT_THAT(read(layers_of(2,
                             [](GraphBuilder& b, ValueId x) {
                               x = b.op("add", "add1", {x, attend(b, b.rms_norm("n1", x))});
                               return b.op("add", "add2", {feed(b, b.rms_norm("n2", x)), x});
                             }))
                  .faults,
              IsEmpty());
  EXPECT_EQ(fault([](GraphBuilder& b, ValueId x) {
              const ValueId n = b.rms_norm("n1", x);
              return b.op("add", "out", {x, b.op("add", "sum", {attend(b, n), feed(b, n)})});
            }),
            "layer layers.0: attention and MLP run in parallel");
  EXPECT_EQ(
      fault([](GraphBuilder& b, ValueId x) {
        x = b.rms_norm("n1", b.op("add", "add1", {x, attend(b, x)}));
        return b.rms_norm("n2", b.op("add", "add2", {x, feed(b, x)}));
      }),
      "layer layers.0: 'layers.0.q' (linear) reads the residual stream, without a norm before "
      "the attention");
  EXPECT_EQ(
      fault([](GraphBuilder& b, ValueId x) {
        x = b.op("add", "add1", {x, b.rms_norm("post", attend(b, b.rms_norm("n1", x)))});
        return b.op("add", "add2", {x, feed(b, b.rms_norm("n2", x))});
      }),
      "layer layers.0: the result of the attention passes through 'layers.0.post' (rms_norm)");
  EXPECT_EQ(fault([](GraphBuilder& b, ValueId x) {
              x = b.op("add", "add1", {x, attend(b, b.rms_norm("n1", x))});
              x = b.op("add", "add2", {x, feed(b, b.rms_norm("n2", x))});
              return b.op("scale", "scaled", {x}, {{"factor", 0.5}});
            }),
            "layer layers.0: there is no place for 'layers.0.scaled' (scale)");
  EXPECT_EQ(fault([](GraphBuilder& b, ValueId x) {
              return b.op("add", "add2", {x, feed(b, b.rms_norm("n2", x))});
            }),
            "layer layers.0: it has 0 attention operators");
  EXPECT_THAT(read(layers_of(2,
                             [](GraphBuilder& b, ValueId x) {
                               return b.op("add", "add1",
                                           {x, attend(b, b.rms_norm("n1", x), false)});
                             }))
                  .faults,
              ElementsAre("its attention sees later tokens, as an encoder's does"));
}

DecoderModel llama() { return read(test_model({})).model; }

std::vector<std::string> faults_of(const std::function<void(DecoderModel&)>& change) {
  DecoderModel model = llama();
  change(model);
  MegatronArgs args;
  return set_megatron_model(model, args);
}

std::vector<std::string> flags_of(const std::function<void(DecoderModel&)>& change) {
  DecoderModel model = llama();
  change(model);
  MegatronArgs args;
  EXPECT_THAT(set_megatron_model(model, args), IsEmpty());
  return to_argv(args);
}

template <class Change>
auto all_layers(Change&& change) {
  return [change](DecoderModel& m) {
    for (DecoderLayer& layer : m.layers) change(layer);
  };
}

TEST(MegatronModel, SaysWhatItsOptionsCannot) {
  EXPECT_THAT(faults_of(all_layers([](auto& l) { l.attention.alibi = true; })),
              ElementsAre(HasSubstr("ALiBi")));
  EXPECT_THAT(faults_of(all_layers([](auto& l) { l.attention.softcap = 50; })),
              ElementsAre("attention logits cannot be capped"));
  EXPECT_THAT(faults_of(all_layers([](auto& l) { l.mlp->act = "gelu"; })),
              ElementsAre("gated MLPs with gelu are no option of Megatron's"));
  EXPECT_THAT(faults_of(all_layers([](auto& l) { l.attention.out_bias = true; })),
              ElementsAre(HasSubstr("biases are in some of its linears")));
  EXPECT_THAT(faults_of([](DecoderModel& m) { m.layers[1].attention.heads = 16; }),
              ElementsAre(HasSubstr("differ in heads")));
  EXPECT_THAT(faults_of([](DecoderModel& m) { m.layers[1].mlp->ffn = 512; }),
              ElementsAre(HasSubstr("differ in the width or kind of the MLP")));
  EXPECT_THAT(faults_of([](DecoderModel& m) { m.final_norm = DecoderNorm::kLayer; }),
              ElementsAre(HasSubstr("norms are of two kinds")));
  EXPECT_THAT(faults_of([](DecoderModel& m) { m.embedding_dropout = 0.1; }),
              ElementsAre("dropout is 0.1 behind the embedding and 0 in the layers"));
}

TEST(MegatronModel, KnowsItsOptions) {
  EXPECT_THAT(flags_of(all_layers([](auto& l) { l.attention.qkv_bias = true; })),
              Contains("--add-qkv-bias"));
  EXPECT_THAT(flags_of(all_layers([](auto& l) { l.attention.qk_norm = true; })),
              Contains("--qk-layernorm"));
  EXPECT_THAT(flags_of(all_layers([](auto& l) { l.attention.rotary_dim = 4; })),
              Contains("--rotary-percent"));
  EXPECT_THAT(flags_of([](DecoderModel& m) { m.layers[3].attention.rotary_dim = 0; }),
              Contains("([0]*3+[1])"));
  // Every second layer sees 32 tokens: itself and 31 before.
  const auto windows = flags_of(
      [](DecoderModel& m) { m.layers[0].attention.window = m.layers[2].attention.window = 32; });
  EXPECT_THAT(windows, Contains("31,0"));
  EXPECT_THAT(windows, Contains("([1]+[0])*2"));
  // A window as long as the sequence is none.
  EXPECT_THAT(flags_of(all_layers([](auto& l) { l.attention.window = 128; })),
              ::testing::Not(Contains("--window-size")));
}

}  // namespace
}  // namespace meshwright
