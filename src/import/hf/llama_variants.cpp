// Dense models that change Llama's block: other norms, norms of results, parallel sublayers, partly
// rotated heads, scaled residuals.
#include <cmath>

#include "import/hf/families.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

Decoder finish(Plain p) {
  p.decoder.repeat(p.layer, p.sizes.layers);
  return std::move(p.decoder);
}

void set_bias(Plain& p, bool qkv, bool out) {
  AttentionSpec& a = *p.layer.attention;
  a.q_bias = a.k_bias = a.v_bias = qkv;
  a.o_bias = out;
}

constexpr SizeDefaults kOlmoSizes{
    .hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 50304};

// Norms without parameters.
Decoder read_olmo(const Config& config) {
  Plain p = read_plain(config, "olmo", kOlmoSizes);
  p.decoder.norm = NormKind::kLayerUnscaled;
  return finish(std::move(p));
}

// Norms of results instead of inputs, and of all queries and keys together. The third generation
// attends to a window in three layers of four.
Decoder read_olmo2(const Config& config) {
  const bool third = config.text_or({"model_type"}, "") == "olmo3";
  Plain p = read_plain(config, third ? "olmo3" : "olmo2", kOlmoSizes);
  p.layer.pre_norm = false;
  p.layer.out_norm = true;
  p.layer.attention->qk_norm = QkNorm::kFlat;
  const std::vector<bool> sliding = read_sliding_layers(config, p.sizes.layers);
  const std::int64_t window = third ? config.size_or({"sliding_window"}, 4096) : 0;
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool local = sliding.empty() ? (i + 1) % 4 != 0 : sliding[static_cast<std::size_t>(i)];
    p.layer.attention->window = local ? window : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

// GLM-4 (2024) and GLM-4-0414, which also normalizes results.
Decoder read_glm(const Config& config) {
  const bool fourth = config.text_or({"model_type"}, "") == "glm4";
  Plain p = read_plain(config, fourth ? "glm4" : "glm",
                       {.hidden = 4096,
                        .ffn = 13696,
                        .layers = 40,
                        .heads = 32,
                        .kv_heads = 2,
                        .head_dim = 128,
                        .vocab = 151552,
                        .positions = 131072});
  set_bias(p, config.flag_or({"attention_bias"}, true), false);
  p.layer.attention->rotary_dim = read_rotary_dim(config, p.sizes.head_dim, 0.5);
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = false;
  p.layer.out_norm = fourth;
  p.decoder.names.dense.gate = "gate_up_proj.gate";
  p.decoder.names.dense.up = "gate_up_proj.up";
  p.decoder.names.attention_out_norm = "post_self_attn_layernorm";
  p.decoder.names.mlp_out_norm = "post_mlp_layernorm";
  return finish(std::move(p));
}

// ChatGLM 2 and 3, and the first GLM-4, in their authors' own configuration format.
Decoder read_chatglm(const Config& config) {
  if (config.has("inner_hidden_size")) {
    config.fail("inner_hidden_size",
                "the first ChatGLM (prefix attention, two-dimensional positions) is not supported",
                "ChatGLM 2 and later are");
  }
  Plain p = read_plain(config, "chatglm",
                       {.hidden = 4096,
                        .ffn = 13696,
                        .layers = 28,
                        .heads = 32,
                        .head_dim = 128,
                        .vocab = 65024,
                        .positions = 2048});
  if (!config.flag_or({"multi_query_attention"}, false)) {
    p.layer.attention->kv_heads = p.sizes.heads;
  }
  const bool bias = config.flag_or({"add_bias_linear"}, false);
  set_bias(p, bias || config.flag_or({"add_qkv_bias"}, false), bias);
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = bias;
  p.layer.attention->rotary_dim = read_rotary_dim(config, p.sizes.head_dim, 0.5);
  p.decoder.norm = config.flag_or({"rmsnorm"}, true) ? NormKind::kRms : NormKind::kLayer;
  p.decoder.final_norm = config.flag_or({"post_layer_norm"}, true);
  p.decoder.hidden_dropout = config.number_or({"hidden_dropout"}, 0);
  DecoderNames& n = p.decoder.names;
  n.layers = "transformer.encoder.layers";
  n.embed = "transformer.embedding.word_embeddings";
  n.final_norm = "transformer.encoder.final_layernorm";
  n.head = "transformer.output_layer";
  n.attention = "self_attention";
  n.attn = {"query_key_value.q", "query_key_value.k", "query_key_value.v", "dense", "", ""};
  n.dense = {"dense_h_to_4h.gate", "dense_h_to_4h.up", "dense_4h_to_h"};
  return finish(std::move(p));
}

Decoder read_stablelm(const Config& config) {
  Plain p = read_plain(config, "stablelm",
                       {.hidden = 2560,
                        .ffn = 6912,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 32,
                        .vocab = 50304,
                        .positions = 4096});
  set_bias(p, config.flag_or({"use_qkv_bias"}, false), false);
  p.layer.attention->rotary_dim = read_rotary_dim(config, p.sizes.head_dim, 0.25);
  if (config.flag_or({"qk_layernorm"}, false)) {
    p.layer.attention->qk_norm = QkNorm::kEachHead;
    p.layer.attention->qk_norm_kind = NormKind::kLayerNoBias;
  }
  p.layer.parallel = p.layer.shared_norm = config.flag_or({"use_parallel_residual"}, false);
  p.decoder.norm = NormKind::kLayer;
  p.decoder.hidden_dropout = config.number_or({"hidden_dropout"}, 0);
  p.decoder.names.attn.q_norm = "q_layernorm";
  p.decoder.names.attn.k_norm = "k_layernorm";
  return finish(std::move(p));
}

// Command R. The second generation has windows with rotary positions and, every fourth layer, full
// attention without positions.
Decoder read_cohere(const Config& config) {
  const bool second = config.text_or({"model_type"}, "") == "cohere2";
  Plain p = read_plain(config, second ? "cohere2" : "cohere",
                       {.hidden = 8192,
                        .ffn = 22528,
                        .layers = 40,
                        .heads = 64,
                        .vocab = 256000,
                        .positions = 8192});
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  p.decoder.logit_scale = config.number_or({"logit_scale"}, 0.0625);
  p.decoder.norm = NormKind::kLayerNoBias;
  p.layer.parallel = p.layer.shared_norm = true;
  if (config.flag_or({"use_qk_norm"}, false)) {
    p.layer.attention->qk_norm = QkNorm::kEachHead;
    p.layer.attention->qk_norm_kind = NormKind::kLayerNoBias;
  }
  const std::vector<bool> sliding = read_sliding_layers(config, p.sizes.layers);
  const std::int64_t window = second ? config.size_or({"sliding_window"}, 4096) : 0;
  const std::int64_t pattern = config.size_or({"sliding_window_pattern"}, 4);
  const std::int64_t rotary_dim = p.layer.attention->rotary_dim;
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool local =
        sliding.empty() ? (i + 1) % pattern != 0 : sliding[static_cast<std::size_t>(i)];
    p.layer.attention->window = local ? window : 0;
    p.layer.attention->rotary_dim = local || !second ? rotary_dim : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

Decoder read_starcoder2(const Config& config) {
  Plain p = read_plain(config, "starcoder2",
                       {.hidden = 3072,
                        .ffn = 12288,
                        .layers = 30,
                        .heads = 24,
                        .kv_heads = 2,
                        .vocab = 49152,
                        .positions = 4096});
  const bool bias = config.flag_or({"use_bias"}, true);
  set_bias(p, bias, bias);
  p.layer.mlp->gated = false;
  p.layer.mlp->act = read_activation(config, {"hidden_act"}, "gelu_pytorch_tanh");
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = bias;
  p.layer.attention->window = config.size_or({"sliding_window"}, 0);
  p.decoder.norm = NormKind::kLayer;
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  p.decoder.hidden_dropout = config.number_or({"residual_dropout"}, 0);
  p.decoder.embed_dropout = config.number_or({"embedding_dropout"}, 0);
  p.decoder.names.dense = {"c_gate", "c_fc", "c_proj"};
  return finish(std::move(p));
}

// Nemotron-4: squared ReLU, LayerNorm whose weight is kept around zero.
Decoder read_nemotron(const Config& config) {
  Plain p = read_plain(config, "nemotron",
                       {.hidden = 6144,
                        .ffn = 24576,
                        .layers = 32,
                        .heads = 48,
                        .vocab = 256000,
                        .positions = 4096});
  p.layer.attention->rotary_dim = read_rotary_dim(config, p.sizes.head_dim, 0.5);
  p.layer.mlp->gated = false;
  p.layer.mlp->act = read_activation(config, {"hidden_act"}, "relu2");
  p.decoder.norm = NormKind::kLayer;
  return finish(std::move(p));
}

// Scaled embedding, residuals and logits (maximal update parametrization).
Decoder read_granite(const Config& config) {
  Plain p = read_plain(config, "granite",
                       {.hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 32000});
  p.decoder.embed_scale = config.number_or({"embedding_multiplier"}, 1);
  p.layer.residual_scale = config.number_or({"residual_multiplier"}, 1);
  const double scaling = config.number_or({"logits_scaling"}, 1);
  if (scaling == 0) config.fail("logits_scaling", "logits_scaling divides and must not be 0");
  p.decoder.logit_scale = 1 / scaling;
  return finish(std::move(p));
}

Decoder read_minicpm(const Config& config) {
  Plain p = read_plain(config, "minicpm",
                       {.hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 32000});
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  p.decoder.embed_scale = config.number_or({"scale_emb"}, 1);
  p.layer.residual_scale =
      config.number_or({"scale_depth"}, 1) / std::sqrt(static_cast<double>(p.sizes.layers));
  p.decoder.logit_scale = static_cast<double>(config.size_or({"dim_model_base"}, p.sizes.hidden)) /
                          static_cast<double>(p.sizes.hidden);
  return finish(std::move(p));
}

// Norms of results, of each head's queries and keys; full-attention layers have no positions when
// others have a window.
Decoder read_exaone4(const Config& config) {
  Plain p = read_plain(
      config, "exaone4",
      {.hidden = 4096, .ffn = 16384, .layers = 32, .heads = 32, .kv_heads = 32, .vocab = 102400});
  set_bias(p, false, false);
  p.layer.pre_norm = false;
  p.layer.out_norm = true;
  p.layer.attention->qk_norm = QkNorm::kPerHead;
  const std::int64_t window =
      config.size_or({"sliding_window"}, config.is_null("sliding_window") ? 0 : 4096);
  const std::vector<bool> sliding = read_sliding_layers(config, p.sizes.layers);
  const std::int64_t rotary_dim = p.layer.attention->rotary_dim;
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool local =
        sliding.empty() ? window > 0 && (i + 1) % 4 != 0 : sliding[static_cast<std::size_t>(i)];
    p.layer.attention->window = local ? window : 0;
    p.layer.attention->rotary_dim = window == 0 || local ? rotary_dim : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

using Names = const std::string_view[];
constexpr Names kOlmoTypes = {"olmo"};
constexpr Names kOlmoClasses = {"Olmo"};
constexpr Names kOlmo2Types = {"olmo2", "olmo3"};
constexpr Names kOlmo2Classes = {"Olmo2", "Olmo3"};
constexpr Names kGlmTypes = {"glm", "glm4"};
constexpr Names kGlmClasses = {"Glm", "Glm4"};
constexpr Names kChatGlmTypes = {"chatglm"};
constexpr Names kChatGlmClasses = {"ChatGLM"};
constexpr Names kStableLmTypes = {"stablelm", "stablelm_epoch"};
constexpr Names kStableLmClasses = {"StableLm", "StableLMEpoch"};
constexpr Names kCohereTypes = {"cohere", "cohere2"};
constexpr Names kCohereClasses = {"Cohere", "Cohere2"};
constexpr Names kStarcoder2Types = {"starcoder2"};
constexpr Names kStarcoder2Classes = {"Starcoder2"};
constexpr Names kNemotronTypes = {"nemotron"};
constexpr Names kNemotronClasses = {"Nemotron"};
constexpr Names kGraniteTypes = {"granite"};
constexpr Names kGraniteClasses = {"Granite"};
constexpr Names kMiniCpmTypes = {"minicpm"};
constexpr Names kMiniCpmClasses = {"MiniCPM"};
constexpr Names kExaone4Types = {"exaone4"};
constexpr Names kExaone4Classes = {"Exaone4"};

}  // namespace

const Family kOlmo{"olmo", "OLMo 1", kOlmoTypes, kOlmoClasses, build_with<read_olmo>};
const Family kOlmo2{"olmo2", "OLMo 2 and 3", kOlmo2Types, kOlmo2Classes, build_with<read_olmo2>};
const Family kGlm{"glm", "GLM-4 (dense)", kGlmTypes, kGlmClasses, build_with<read_glm>};
const Family kChatGlm{"chatglm", "ChatGLM 2 and 3", kChatGlmTypes, kChatGlmClasses,
                      build_with<read_chatglm>};
const Family kStableLm{"stablelm", "StableLM", kStableLmTypes, kStableLmClasses,
                       build_with<read_stablelm>};
const Family kCohere{"cohere", "Command R, Command R7B", kCohereTypes, kCohereClasses,
                     build_with<read_cohere>};
const Family kStarcoder2{"starcoder2", "StarCoder 2", kStarcoder2Types, kStarcoder2Classes,
                         build_with<read_starcoder2>};
const Family kNemotron{"nemotron", "Nemotron 4, Minitron", kNemotronTypes, kNemotronClasses,
                       build_with<read_nemotron>};
const Family kGranite{"granite", "Granite 3 (dense)", kGraniteTypes, kGraniteClasses,
                      build_with<read_granite>};
const Family kMiniCpm{"minicpm", "MiniCPM 1 and 2", kMiniCpmTypes, kMiniCpmClasses,
                      build_with<read_minicpm>};
const Family kExaone4{"exaone4", "EXAONE 4", kExaone4Types, kExaone4Classes,
                      build_with<read_exaone4>};

}  // namespace meshwright::hf
