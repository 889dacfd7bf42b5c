#include "import/hf/decoder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "ir/graph.h"

namespace meshwright {
namespace {

using testing::Contains;
using testing::HasSubstr;

Model import(std::string_view text, const ImportOptions& options) {
  return import_hf_config(text, "config.json", options);
}

constexpr std::string_view kLlama = R"({"model_type": "llama", "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "attention_dropout": 0.1, "vocab_size": 100})";

// Operators of one layer, without their names: kinds, attributes, result types.
std::string layer_text(const Graph& graph, const std::string& prefix) {
  std::string text;
  for (const Op& op : graph.ops) {
    if (!op.name.starts_with(prefix)) continue;
    text += fmt::format("{} {} {}\n", op.name.substr(prefix.size()), op.kind,
                        to_string(graph.value(op.outputs[0]).type));
  }
  return text;
}

const Op& find(const Graph& graph, std::string_view name) {
  const auto it = std::find_if(graph.ops.begin(), graph.ops.end(),
                               [&](const Op& op) { return op.name == name; });
  EXPECT_NE(it, graph.ops.end()) << name;
  return *it;
}

int count(const Graph& graph, std::string_view kind) {
  return static_cast<int>(std::count_if(graph.ops.begin(), graph.ops.end(),
                                        [&](const Op& op) { return op.kind == kind; }));
}

TEST(Decoder, LayersAreAlikeAndDimsAreNamed) {
  const Model model = import(kLlama, {.global_batch = 4, .seq = 16});
  const std::string layer = layer_text(model.graph, "model.layers.0.");
  EXPECT_EQ(layer, R"(input_layernorm rms_norm bf16[batch=4, seq=16, hidden=64]
self_attn.q_proj linear bf16[batch=4, seq=16, heads=64/8]
self_attn.q_proj.heads reshape bf16[batch=4, seq=16, heads=8, head_dim=8]
self_attn.k_proj linear bf16[batch=4, seq=16, kv_heads=16/8]
self_attn.k_proj.heads reshape bf16[batch=4, seq=16, kv_heads=2, head_dim=8]
self_attn.v_proj linear bf16[batch=4, seq=16, kv_heads=16/8]
self_attn.v_proj.heads reshape bf16[batch=4, seq=16, kv_heads=2, head_dim=8]
self_attn.q_proj.rope rope bf16[batch=4, seq=16, heads=8, head_dim=8]
self_attn.k_proj.rope rope bf16[batch=4, seq=16, kv_heads=2, head_dim=8]
self_attn.core attention bf16[batch=4, seq=16, heads=8, head_dim=8]
self_attn.core.flat reshape bf16[batch=4, seq=16, heads=64/8]
self_attn.o_proj linear bf16[batch=4, seq=16, hidden=64]
self_attn.residual add bf16[batch=4, seq=16, hidden=64]
post_attention_layernorm rms_norm bf16[batch=4, seq=16, hidden=64]
mlp.gate_proj linear bf16[batch=4, seq=16, ffn=96]
mlp.up_proj linear bf16[batch=4, seq=16, ffn=96]
mlp.act gated bf16[batch=4, seq=16, ffn=96]
mlp.down_proj linear bf16[batch=4, seq=16, hidden=64]
mlp.residual add bf16[batch=4, seq=16, hidden=64]
)");
  EXPECT_EQ(layer_text(model.graph, "model.layers.1."), layer);
  EXPECT_EQ(layer_text(model.graph, "model.layers.2."), layer);
  EXPECT_EQ(model.graph.ops.front().name, "model.embed_tokens");
  EXPECT_EQ(model.graph.ops.back().kind, "cross_entropy");
  EXPECT_EQ(model.global_batch, 4);
  EXPECT_EQ(model.seq, 16);
  EXPECT_TRUE(model.notes.empty()) << model.notes.front();
}

TEST(Decoder, OptionsChooseKernelDropoutAndType) {
  const Model plain = import(kLlama, {.seq = 16});
  EXPECT_EQ(find(plain.graph, "model.layers.0.self_attn.core").attrs.count("dropout"), 0u);
  const Model model =
      import(kLlama, {.seq = 16, .dtype = DType::kF16, .attention = "unfused", .dropout = true});
  const Attrs& attrs = find(model.graph, "model.layers.0.self_attn.core").attrs;
  EXPECT_EQ(attr_string(attrs, "kernel", ""), "unfused");
  EXPECT_EQ(attr_float(attrs, "dropout", 0), 0.1);
  EXPECT_EQ(model.graph.value(model.graph.ops[0].outputs[0]).type.dtype, DType::kF16);

  const std::string_view gpt2 = R"({"model_type": "gpt2", "n_layer": 2})";
  EXPECT_EQ(count(import(gpt2, {.seq = 16}).graph, "dropout"), 0);
  EXPECT_EQ(count(import(gpt2, {.seq = 16, .dropout = true}).graph, "dropout"), 1 + 2 * 2);
}

TEST(Decoder, TiedHeadSharesTheEmbedding) {
  const Model model = import(R"({"model_type": "gpt2", "n_layer": 1})", {.seq = 16});
  const Op& embed = find(model.graph, "transformer.wte");
  EXPECT_EQ(find(model.graph, "lm_head").inputs[1], embed.inputs[1]);
}

TEST(Decoder, WindowsByLayer) {
  const Model model = import(R"({"model_type": "gemma3_text", "num_hidden_layers": 12,
                                 "sliding_window": 8})",
                             {.seq = 16});
  std::vector<std::int64_t> windows;
  for (const Op& op : model.graph.ops) {
    if (op.kind == "attention") windows.push_back(attr_int(op.attrs, "window", 0));
  }
  EXPECT_THAT(windows, testing::ElementsAre(8, 8, 8, 8, 8, 0, 8, 8, 8, 8, 8, 0));
}

TEST(Decoder, ExpertsAreRoutedAndShared) {
  const Model model =
      import(R"({"model_type": "deepseek_v3", "num_hidden_layers": 4})", {.seq = 64});
  EXPECT_EQ(layer_text(model.graph, "model.layers.3.mlp."),
            R"(gate moe_router f32[batch=1, seq=64, experts=256]
experts.dispatch moe_dispatch bf16[experts=256, batch=1, seq=2, hidden=7168]
experts.gate_proj grouped_linear bf16[experts=256, batch=1, seq=2, expert_ffn=2048]
experts.up_proj grouped_linear bf16[experts=256, batch=1, seq=2, expert_ffn=2048]
experts.act gated bf16[experts=256, batch=1, seq=2, expert_ffn=2048]
experts.down_proj grouped_linear bf16[experts=256, batch=1, seq=2, hidden=7168]
experts.combine moe_combine bf16[batch=1, seq=64, hidden=7168]
shared_experts.gate_proj linear bf16[batch=1, seq=64, ffn=2048]
shared_experts.up_proj linear bf16[batch=1, seq=64, ffn=2048]
shared_experts.act gated bf16[batch=1, seq=64, ffn=2048]
shared_experts.down_proj linear bf16[batch=1, seq=64, hidden=7168]
experts_sum add bf16[batch=1, seq=64, hidden=7168]
residual add bf16[batch=1, seq=64, hidden=7168]
)");
  EXPECT_EQ(count(model.graph, "moe_router"), 1);  // Three dense layers come first.
}

TEST(Decoder, MultiTokenPrediction) {
  const std::string_view text = R"({"model_type": "deepseek_v3", "num_hidden_layers": 4,
                                    "num_nextn_predict_layers": 1})";
  const Model without = import(text, {.seq = 64});
  EXPECT_EQ(count(without.graph, "cross_entropy"), 1);
  EXPECT_THAT(without.notes, Contains(HasSubstr("1 multi-token-prediction module left out")));
  const Model with = import(text, {.seq = 64, .mtp = true});
  EXPECT_EQ(count(with.graph, "cross_entropy"), 2);
  // The projection of two hidden states to one, three norms, and one more sparse layer: attention
  // 187,107,328, router 1,835,264, 256 + 1 experts, two norms.
  const double hidden = 7168;
  const double layer = 187107328 + 1835264 + 257.0 * 3 * hidden * 2048 + 2 * hidden;
  EXPECT_EQ(parameter_count(with.graph) - parameter_count(without.graph),
            2 * hidden * hidden + 3 * hidden + layer);
}

TEST(Decoder, ImagesComeFirst) {
  const Model model = import(
      R"({"model_type": "qwen3_vl",
          "text_config": {"model_type": "qwen3_vl_text", "num_hidden_layers": 4},
          "vision_config": {"depth": 2, "deepstack_visual_indexes": [0], "out_hidden_size": 4096}})",
      {.seq = 1024});
  EXPECT_THAT(
      model.notes,
      Contains("one image of 1024 patches per sequence is assumed: 256 of its 1024 tokens"));
  const Graph& graph = model.graph;
  EXPECT_EQ(to_string(graph.value(find(graph, "visual.merger.linear_fc2").outputs[0]).type),
            "bf16[batch=1, patches=256, hidden=4096]");
  EXPECT_EQ(
      to_string(graph.value(find(graph, "model.language_model.embed_tokens").outputs[0]).type),
      "bf16[batch=1, seq=768, hidden=4096]");
  EXPECT_EQ(
      to_string(
          graph.value(find(graph, "model.language_model.embed_tokens.images").outputs[0]).type),
      "bf16[batch=1, seq=1024, hidden=4096]");
  EXPECT_EQ(attr_bool(find(graph, "visual.blocks.0.core").attrs, "causal", false), false);
  find(graph, "model.language_model.layers.0.deepstack.residual");
}

TEST(Decoder, NotesSayWhatIsAssumed) {
  EXPECT_THAT(import(R"({"architectures": ["LlamaForSequenceClassification"], "hidden_size": 64,
                         "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 100})",
                     {.seq = 16})
                  .notes,
              testing::UnorderedElementsAre(
                  HasSubstr("'LlamaForSequenceClassification' is imported as a language model"),
                  HasSubstr("the file names no model_type; read as llama")));
  EXPECT_THAT(import(R"({"model_type": "llama", "num_hidden_layers": 1})", {.seq = 16}).notes,
              Contains("sizes that the file leaves to the library's defaults: hidden_size 4096, "
                       "num_attention_heads 32, vocab_size 32000"));
  EXPECT_THAT(import(R"({"model_type": "internvl_chat",
                         "llm_config": {"model_type": "qwen2", "num_hidden_layers": 1},
                         "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24,
                                           "intermediate_size": 4096}})",
                     {.seq = 16})
                  .notes,
              Contains("only the language model (llm_config) of this 'internvl_chat' file is "
                       "imported; the image encoder (about 302 million parameters) with its "
                       "connector is left out"));
}

}  // namespace
}  // namespace meshwright
