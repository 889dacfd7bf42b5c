#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "base/error.h"
#include "import/import.h"
#include "ops/check_ops.h"
#include "ops/gradient_flow.h"
#include "ops/graph_work.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

struct Sizes {
  std::int64_t sequences = 8, residues = 16, layers = 2, recycles = 1;
  std::int64_t msa = 24, pair = 20, msa_heads = 3, msa_dim = 8, pair_heads = 2, pair_dim = 6;
  std::int64_t outer = 4, triangle = 10, transition = 4;
  std::int64_t extra_layers = 0, extra_sequences = 12, extra_msa = 14, extra_dim = 5;
};

std::string config(const Sizes& z) {
  return fmt::format(
      R"({{"model_type": "evoformer", "sequences": {}, "residues": {}, "num_layers": {},
          "recycles": {}, "msa_channels": {}, "pair_channels": {}, "msa_heads": {},
          "msa_head_dim": {}, "pair_heads": {}, "pair_head_dim": {}, "outer_product_channels": {},
          "triangle_channels": {}, "transition_factor": {}, "extra_msa_layers": {},
          "extra_sequences": {}, "extra_msa_channels": {}, "extra_msa_head_dim": {}}})",
      z.sequences, z.residues, z.layers, z.recycles, z.msa, z.pair, z.msa_heads, z.msa_dim,
      z.pair_heads, z.pair_dim, z.outer, z.triangle, z.transition, z.extra_layers,
      z.extra_sequences, z.extra_msa, z.extra_dim);
}

Graph build(const Sizes& z, const ImportOptions& options = {}) {
  return import_hf_config(config(z), "evoformer.json", options).graph;
}

// Parameters of the modules of section 1.6 of the supplementary material, m and z channels wide.
std::int64_t norm(std::int64_t c) { return 2 * c; }
std::int64_t linear(std::int64_t in, std::int64_t out) { return in * out + out; }
// Algorithms 8, 13, 14, and 7 without its bias: norm, q k v without bias, gate, output.
std::int64_t attention(std::int64_t c, std::int64_t flat) {
  return norm(c) + 3 * c * flat + linear(c, flat) + linear(flat, c);
}
std::int64_t transition(std::int64_t c, std::int64_t n) {
  return norm(c) + linear(c, n * c) + linear(n * c, c);
}
// Algorithms 10 to 15: what updates z.
std::int64_t pair_updates(const Sizes& s, std::int64_t m) {
  const std::int64_t z = s.pair, t = s.triangle;
  const std::int64_t outer = norm(m) + 2 * linear(m, s.outer) + linear(s.outer * s.outer, z);
  const std::int64_t multiplication =
      norm(z) + 4 * linear(z, t) + norm(t) + linear(t, z) + linear(z, z);
  const std::int64_t node = attention(z, s.pair_heads * s.pair_dim) + z * s.pair_heads;
  return outer + 2 * multiplication + 2 * node + transition(z, s.transition);
}
std::int64_t layer(const Sizes& s) {
  const std::int64_t flat = s.msa_heads * s.msa_dim;
  const std::int64_t bias = norm(s.pair) + s.pair * s.msa_heads;
  return 2 * attention(s.msa, flat) + bias + transition(s.msa, s.transition) +
         pair_updates(s, s.msa);
}
std::int64_t extra_layer(const Sizes& s) {
  const std::int64_t e = s.extra_msa, flat = s.msa_heads * s.extra_dim;
  const std::int64_t bias = norm(s.pair) + s.pair * s.msa_heads;
  const std::int64_t global =
      norm(e) + e * flat + 2 * e * s.extra_dim + linear(e, flat) + linear(flat, e);
  return attention(e, flat) + bias + global + transition(e, s.transition) + pair_updates(s, e);
}
// Algorithms 3, 4 and 32, and the two heads.
std::int64_t outside(const Sizes& s) {
  const std::int64_t embedder =
      2 * linear(22, s.pair) + linear(65, s.pair) + linear(22, s.msa) + linear(49, s.msa);
  const std::int64_t recycling = s.recycles > 0 ? norm(s.msa) + norm(s.pair) : 0;
  const std::int64_t extra = s.extra_layers > 0 ? linear(25, s.extra_msa) : 0;
  return embedder + recycling + extra + linear(s.msa, 23) + linear(s.pair, 64);
}

TEST(Evoformer, CountsItsParameters) {
  std::vector<Sizes> cases = {{}, {.layers = 5, .recycles = 3}, {.recycles = 0}};
  cases.push_back({.msa = 40, .msa_heads = 5, .outer = 3, .triangle = 7, .transition = 2});
  cases.push_back({.extra_layers = 3});
  for (const Sizes& z : cases) {
    EXPECT_EQ(parameter_count(build(z)),
              z.layers * layer(z) + z.extra_layers * extra_layer(z) + outside(z))
        << config(z);
  }
}

// One layer of the published sizes: 1,829,952 parameters, so 87.8 million in 48; the whole network
// has about 93 million.
TEST(Evoformer, PublishedSizes) {
  const Sizes z{.sequences = 128,
                .residues = 256,
                .layers = 48,
                .recycles = 3,
                .msa = 256,
                .pair = 128,
                .msa_heads = 8,
                .msa_dim = 32,
                .pair_heads = 4,
                .pair_dim = 32,
                .outer = 32,
                .triangle = 128,
                .extra_layers = 4,
                .extra_sequences = 1024,
                .extra_msa = 64,
                .extra_dim = 8};
  EXPECT_EQ(layer(z), 1'829'952);
  const double whole = parameter_count(import_model("evoformer-48-extra", {}).graph);
  EXPECT_EQ(whole, 48 * layer(z) + 4 * extra_layer(z) + outside(z));
  EXPECT_GT(whole, 88e6);
  EXPECT_LT(whole, 93e6);
  Sizes plain = z;
  plain.extra_layers = 0;
  EXPECT_EQ(parameter_count(import_model("evoformer-48", {}).graph),
            48 * layer(plain) + outside(plain));
}

const Value& value(const Graph& graph, std::string_view name) {
  for (const Value& v : graph.values) {
    if (v.name == name) return v;
  }
  throw Error(fmt::format("no value {}", name));
}

TEST(Evoformer, Shapes) {
  struct Case {
    std::string_view model;
    int s, r;
  };
  for (const Case& c : {Case{"evoformer-48", 128, 256}, Case{"evoformer-48-512x256", 512, 256},
                        Case{"evoformer-48-512x384", 512, 384}}) {
    const Model model = import_model(c.model, {.global_batch = 2});
    check_ops(model.graph);
    EXPECT_EQ(model.seq, c.r);
    const auto type = [&](std::string_view name) {
      return to_string(value(model.graph, name).type);
    };
    EXPECT_EQ(type("recycle3.layers.47.msa_transition.add"),
              fmt::format("bf16[batch=2, sequences={}, residues={}, hidden=256]", c.s, c.r));
    EXPECT_EQ(type("recycle3.layers.47.pair_transition.add"),
              fmt::format("bf16[batch=2, residues={0}, residues2={0}, hidden=128]", c.r));
    EXPECT_EQ(
        type("recycle0.layers.0.msa_row_attention.core"),
        fmt::format("bf16[batch=2, sequences={}, residues={}, heads=8, head_dim=32]", c.s, c.r));
    EXPECT_EQ(type("recycle0.layers.0.msa_row_attention.bias.permute"),
              fmt::format("bf16[batch=2, heads=8, residues={0}, residues2={0}]", c.r));
    EXPECT_EQ(
        type("recycle0.layers.0.msa_column_attention.core"),
        fmt::format("bf16[batch=2, residues={}, sequences={}, heads=8, head_dim=32]", c.r, c.s));
    EXPECT_EQ(type("recycle0.layers.0.outer_product_mean.product"),
              fmt::format("bf16[batch=2, residues={0}/32, residues2={0}/32]", c.r * 32));
    for (const char* side : {"incoming", "outgoing"}) {
      EXPECT_EQ(type(fmt::format("recycle1.layers.3.triangle_multiplication_{}.product", side)),
                fmt::format("bf16[batch=2, triangle=128, residues={0}, residues2={0}]", c.r));
    }
    EXPECT_EQ(type("recycle1.layers.3.triangle_attention_ending.core"),
              fmt::format("bf16[batch=2, residues2={0}, residues={0}, heads=4, head_dim=32]", c.r));
    EXPECT_EQ(type("recycle3.masked_msa_loss"),
              fmt::format("f32[batch=2, sequences={}, residues={}]", c.s, c.r));
    EXPECT_EQ(type("recycle3.distogram_loss"),
              fmt::format("f32[batch=2, residues={0}, residues2={0}]", c.r));
  }
}

// Matrix products of one layer forward, counted by hand.
TEST(Evoformer, CountsItsWork) {
  const Sizes z{.layers = 1, .recycles = 0};
  const auto count = [](const Graph& graph) { return model_flops(graph).value / 6; };
  const double s = 8, r = 16, m = 24, c = 20, t = 10, flat = 24, pair_flat = 12, o = 4;
  const auto attention = [&](double tokens, double width, double f, double keys) {
    return tokens * (5 * width * f + 2 * keys * f);
  };
  const double rows = attention(s * r, m, flat, r) + r * r * c * 3;
  const double columns = attention(s * r, m, flat, s);
  const double transitions = 8 * (s * r * m * m + r * r * c * c);
  const double outer = 2 * s * r * m * o + s * r * r * o * o + r * r * o * o * c;
  const double triangles = 2 * (4 * r * r * c * t + r * r * r * t + r * r * t * c + r * r * c * c);
  const double nodes = 2 * (attention(r * r, c, pair_flat, r) + r * r * c * 2);
  const double with = count(build(z));
  Sizes two = z;
  two.layers = 2;
  EXPECT_DOUBLE_EQ(count(build(two)) - with,
                   rows + columns + transitions + outer + triangles + nodes);
}

TEST(Evoformer, OnlyTheLastPassHasGradients) {
  for (const std::int64_t extra : {0, 1}) {
    const Graph graph = build({.recycles = 3, .extra_layers = extra});
    const std::vector<bool> needed = requires_gradient(graph);
    std::map<std::string, int> passes;
    for (std::size_t i = 0; i < graph.values.size(); ++i) {
      const Value& v = graph.values[i];
      if (v.kind == ValueKind::kParameter) {
        EXPECT_TRUE(needed[i]) << v.name;
        EXPECT_THAT(v.name, testing::Not(HasSubstr("recycle"))) << "is of one pass only";
      }
      if (v.kind == ValueKind::kInput) {
        EXPECT_FALSE(needed[i]) << v.name;
      }
      if (v.kind != ValueKind::kActivation) continue;
      if (!v.name.starts_with("recycle3.")) {
        EXPECT_FALSE(needed[i]) << v.name;
      }
      ++passes[v.name.substr(0, v.name.find('.'))];
    }
    EXPECT_EQ(passes.size(), 4u);
    EXPECT_EQ(passes["recycle1"], passes["recycle2"]);
    int detached = 0;
    for (const Op& op : graph.ops) detached += op.kind == "detach";
    EXPECT_EQ(detached, 6);
  }
}

// A pass without gradients costs a third of the last one.
TEST(Evoformer, RecycledPassesCountForwardOnly) {
  const double once = model_flops(build({.recycles = 0})).value;
  const double heads = 3 * 2.0 * (8 * 16 * 24 * 23 + 16 * 16 * 20 * 64);
  EXPECT_NEAR(model_flops(build({.recycles = 3})).value, once + 3 * (once - heads) / 3,
              1e-6 * once);
}

TEST(Evoformer, OptionsCount) {
  const Graph graph =
      build({}, {.global_batch = 4, .seq = 40, .attention = "unfused", .dropout = true});
  check_ops(graph);
  EXPECT_EQ(to_string(value(graph, "recycle1.distogram_loss").type),
            "f32[batch=4, residues=40, residues2=40]");
  std::set<std::string> kernels;
  int dropouts = 0;
  for (const Op& op : graph.ops) {
    if (op.kind == "attention") kernels.insert(attr_string(op.attrs, "kernel", ""));
    dropouts += op.kind == "dropout";
  }
  EXPECT_EQ(kernels, std::set<std::string>{"unfused"});
  EXPECT_EQ(dropouts, 2 * 2 * 5);  // Passes, layers, and row attention and the four triangles.
  EXPECT_EQ(parse_graph(print_graph(graph), "again"), graph);
}

TEST(Evoformer, OneSequenceIsEnough) { check_ops(build({.sequences = 1, .residues = 1})); }

TEST(Evoformer, SizesOutOfBounds) {
  const auto error = [](std::string_view text) {
    try {
      import_hf_config(text, "evoformer.json", {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(R"({"model_type": "evoformer", "recycles": 1000})"),
              HasSubstr("evoformer.json: /recycles: recycles must be at most 100, but is 1000"));
  EXPECT_THAT(error(R"({"model_type": "evoformer", "num_layers": 9000, "recycles": 99})"),
              HasSubstr("9000 layers in each of 100 passes are more than 100000"));
  EXPECT_THAT(error(R"({"model_type": "evoformer", "msa_channels": 2000000})"),
              HasSubstr("msa_channels must be at most 1048576, but is 2000000"));
  EXPECT_THAT(error(R"({"model_type": "evoformer", "sequences": 2000000000,
                        "residues": 2000000000})"),
              HasSubstr("2^53"));
  EXPECT_THAT(error(R"({"model_type": "evoformer", "pair_heads": 0})"), HasSubstr("/pair_heads"));
}

}  // namespace
}  // namespace meshwright
