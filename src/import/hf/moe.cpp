// Mixtures of experts with ordinary attention.
#include <fmt/format.h>

#include <algorithm>

#include "import/hf/families.h"
#include "import/hf/readers.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

void set_bias(Plain& p, bool qkv, bool out) {
  AttentionSpec& a = *p.layer.attention;
  a.q_bias = a.k_bias = a.v_bias = qkv;
  a.o_bias = out;
}

// Every layer has experts and nothing else.
Decoder all_sparse(Plain p, const MoeSpec& moe) {
  p.layer.mlp.reset();
  p.layer.moe = moe;
  p.decoder.repeat(p.layer, p.sizes.layers);
  return std::move(p.decoder);
}

// Layers with experts where `sparse` says so, the dense MLP elsewhere.
Decoder mixed(Plain p, const MoeSpec& moe, const std::vector<bool>& sparse) {
  const LayerSpec dense = p.layer;
  LayerSpec experts = p.layer;
  experts.mlp.reset();
  experts.moe = moe;
  for (bool s : sparse) p.decoder.append(s ? experts : dense);
  return std::move(p.decoder);
}

void mixtral_names(DecoderNames& n) {
  n.moe = "block_sparse_moe";
  n.sparse.mlp = {"w1", "w3", "w2"};
}

Decoder read_mixtral(const Config& config) {
  Plain p = read_plain(config, "mixtral",
                       {.hidden = 4096,
                        .ffn = 14336,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 8,
                        .vocab = 32000,
                        .positions = 131072});
  set_bias(p, false, false);
  p.layer.attention->window = config.size_or({"sliding_window"}, 0);
  mixtral_names(p.decoder.names);
  const MoeSpec moe = read_moe(config, {.experts = 8, .top_k = 2}, p.sizes.ffn);
  return all_sparse(std::move(p), moe);
}

// Sparse every decoder_sparse_step layers, except those listed in mlp_only_layers.
std::vector<bool> qwen_sparse_layers(const Config& config, std::int64_t layers) {
  const std::int64_t step = config.size_or({"decoder_sparse_step"}, 1);
  std::vector<bool> sparse;
  for (std::int64_t i = 0; i < layers; ++i) sparse.push_back((i + 1) % step == 0);
  for (std::int64_t i : config.sizes_or_empty("mlp_only_layers")) {
    if (i >= 0 && i < layers) sparse[static_cast<std::size_t>(i)] = false;
  }
  return sparse;
}

Decoder read_qwen2_moe(const Config& config) {
  Plain p = read_plain(config, "qwen2_moe",
                       {.hidden = 2048,
                        .ffn = 5632,
                        .layers = 24,
                        .heads = 16,
                        .kv_heads = 16,
                        .vocab = 151936,
                        .positions = 32768});
  set_bias(p, config.flag_or({"qkv_bias"}, true), false);
  MoeSpec moe = read_moe(config, {.experts = 60, .top_k = 4},
                         config.size_or({"moe_intermediate_size"}, 1408));
  moe.shared_ffn = config.count_or({"shared_expert_intermediate_size"}, 5632);
  moe.shared_gate = moe.shared_ffn > 0;
  p.decoder.names.sparse.shared = "shared_expert";
  const auto sparse = qwen_sparse_layers(config, p.sizes.layers);
  return mixed(std::move(p), moe, sparse);
}

}  // namespace

Decoder read_qwen3_moe(const Config& config) {
  // Inside Qwen 3 VL the class has defaults of its own.
  const bool in_vl = config.text_or({"model_type"}, "") == "qwen3_vl_moe_text";
  Plain p = read_plain(config, "qwen3_moe",
                       {.hidden = 2048,
                        .ffn = in_vl ? 5632 : 6144,
                        .layers = 24,
                        .heads = in_vl ? 16 : 32,
                        .kv_heads = in_vl ? 16 : 4,
                        .head_dim = in_vl ? 128 : 0,
                        .vocab = 151936,
                        .positions = 32768});
  p.layer.attention->qk_norm = QkNorm::kPerHead;
  const MoeSpec moe = read_moe(config, {.experts = in_vl ? 60 : 128, .top_k = in_vl ? 4 : 8},
                               config.size_or({"moe_intermediate_size"}, in_vl ? 1408 : 768));
  const auto sparse = qwen_sparse_layers(config, p.sizes.layers);
  return mixed(std::move(p), moe, sparse);
}

namespace {

Decoder read_olmoe(const Config& config) {
  Plain p = read_plain(
      config, "olmoe",
      {.hidden = 2048, .ffn = 2048, .layers = 16, .heads = 16, .vocab = 50304, .positions = 4096});
  p.layer.attention->qk_norm = QkNorm::kFlat;
  const MoeSpec moe = read_moe(config, {.experts = 64, .top_k = 8}, p.sizes.ffn);
  return all_sparse(std::move(p), moe);
}

Decoder read_granite_moe(const Config& config) {
  Plain p = read_plain(config, "granitemoe",
                       {.hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 32000});
  p.decoder.embed_scale = config.number_or({"embedding_multiplier"}, 1);
  p.layer.residual_scale = config.number_or({"residual_multiplier"}, 1);
  const double scaling = config.number_or({"logits_scaling"}, 1);
  if (scaling == 0) config.fail("logits_scaling", "logits_scaling divides and must not be 0");
  p.decoder.logit_scale = 1 / scaling;
  MoeSpec moe = read_moe(config, {.experts = 8, .top_k = 2}, p.sizes.ffn);
  moe.shared_ffn = config.count_or({"shared_intermediate_size"}, 0);
  p.decoder.names.moe = "block_sparse_moe";
  p.decoder.names.sparse.router = "router";
  p.decoder.names.sparse.shared = "shared_mlp";
  return all_sparse(std::move(p), moe);
}

Decoder read_phimoe(const Config& config) {
  Plain p = read_plain(config, "phimoe",
                       {.hidden = 4096,
                        .ffn = 6400,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 8,
                        .vocab = 32064,
                        .positions = 131072});
  p.layer.attention->window = config.size_or({"sliding_window"}, 0);
  p.decoder.norm = NormKind::kLayer;
  p.decoder.head_bias = config.flag_or({"lm_head_bias"}, false);
  mixtral_names(p.decoder.names);
  const MoeSpec moe = read_moe(config, {.experts = 16, .top_k = 2}, p.sizes.ffn);
  return all_sparse(std::move(p), moe);
}

Decoder read_dbrx(const Config& config) {
  Plain p = read_plain(config, "dbrx", {.hidden = 2048, .layers = 24, .heads = 16, .vocab = 32000});
  std::int64_t kv_heads = 1, ffn = 3584;
  MoeSpec moe{.experts = 4, .top_k = 1};
  if (config.has_nested("attn_config")) {
    const Config attn = config.nested("attn_config");
    kv_heads = attn.size_or({"kv_n_heads"}, 1);
    check_kv_heads(attn, "kv_n_heads", kv_heads, "n_heads", p.sizes.heads);
  }
  if (config.has_nested("ffn_config")) {
    const Config nested = config.nested("ffn_config");
    ffn = nested.size_or({"ffn_hidden_size"}, ffn);
    moe.experts = nested.size_or({"moe_num_experts"}, 4);
    moe.top_k = nested.size_or({"moe_top_k"}, 1);
    if (moe.top_k > moe.experts) {
      nested.fail("moe_top_k", fmt::format("moe_top_k is {}, but there are only {} experts",
                                           moe.top_k, moe.experts));
    }
  }
  moe.ffn = ffn;
  p.layer.attention->kv_heads = kv_heads;
  p.decoder.norm = NormKind::kLayerNoBias;
  DecoderNames& n = p.decoder.names;
  n.layers = "transformer.blocks";
  n.embed = "transformer.wte";
  n.final_norm = "transformer.norm_f";
  n.attention = "norm_attn_norm.attn";
  n.attention_norm = "norm_attn_norm.norm_1";
  n.mlp_norm = "norm_attn_norm.norm_2";
  n.attn = {"Wqkv.q", "Wqkv.k", "Wqkv.v", "out_proj", "", ""};
  n.mlp = n.moe = "ffn";
  n.sparse.router = "router.layer";
  n.sparse.mlp = {"w1", "v1", "w2"};
  return all_sparse(std::move(p), moe);
}

// Biases everywhere, a clamped activation, a sink logit per head, a window in every second layer.
Decoder read_gpt_oss(const Config& config) {
  Plain p = read_plain(config, "gpt_oss",
                       {.hidden = 2880,
                        .ffn = 2880,
                        .layers = 36,
                        .heads = 64,
                        .kv_heads = 8,
                        .head_dim = 64,
                        .vocab = 201088,
                        .positions = 131072});
  const bool bias = config.flag_or({"attention_bias"}, true);
  set_bias(p, bias, bias);
  p.layer.attention->sinks = true;
  MoeSpec moe = read_moe(config, {.experts = 128, .top_k = 4}, p.sizes.ffn);
  moe.expert_bias = moe.router_bias = true;
  moe.act = "clamped_silu";
  p.layer.mlp.reset();
  p.layer.moe = moe;
  p.decoder.names.sparse.router = "router";
  const std::vector<bool> sliding = read_sliding_layers(config, p.sizes.layers);
  const std::int64_t window = config.size_or({"sliding_window"}, 128);
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool local = sliding.empty() ? i % 2 == 0 : sliding[static_cast<std::size_t>(i)];
    p.layer.attention->window = local ? window : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

}  // namespace

// Layers without rotary positions (every fourth) attend fully; the others within chunks, which are
// priced as windows of that length.
Decoder read_llama4(const Config& config) {
  Plain p = read_plain(config, "llama4",
                       {.hidden = 5120,
                        .ffn = 8192,
                        .layers = 48,
                        .heads = 40,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .vocab = 202048,
                        .positions = 131072});
  const std::int64_t layers = p.sizes.layers;
  MoeSpec moe = read_moe(config, {.experts = 16, .top_k = 1}, p.sizes.ffn);
  moe.score = "sigmoid";
  moe.shared_ffn = p.sizes.ffn;
  p.layer.mlp->ffn = config.size_or({"intermediate_size_mlp"}, 16384);
  DecoderNames& n = p.decoder.names;
  n.mlp = n.moe = "feed_forward";
  n.sparse.router = "router";
  n.sparse.shared = "shared_expert";

  const auto count = static_cast<std::size_t>(layers);
  std::vector<bool> sparse(count), rotary(count);
  const std::int64_t step = config.size_or({"interleave_moe_layer_step"}, 1);
  for (std::int64_t i = step - 1; i < layers; i += step) sparse[static_cast<std::size_t>(i)] = true;
  if (config.has("moe_layers")) {
    sparse.assign(count, false);
    for (std::int64_t i : config.sizes_or_empty("moe_layers")) {
      if (i >= 0 && i < layers) sparse[static_cast<std::size_t>(i)] = true;
    }
  }
  const std::vector<std::int64_t> listed = config.sizes_or_empty("no_rope_layers");
  if (!listed.empty()) check_layer_list(config, "no_rope_layers", listed.size(), layers);
  const std::int64_t interval = config.size_or({"no_rope_layer_interval"}, 4);
  for (std::size_t i = 0; i < count; ++i) {
    rotary[i] =
        listed.empty() ? (static_cast<std::int64_t>(i) + 1) % interval != 0 : listed[i] != 0;
  }
  const std::int64_t chunk = config.size_or({"attention_chunk_size"}, 8192);
  const bool qk_norm = config.flag_or({"use_qk_norm"}, true);
  const std::int64_t rotary_dim = p.layer.attention->rotary_dim;
  for (std::size_t i = 0; i < count; ++i) {
    LayerSpec layer = p.layer;
    layer.attention->rotary_dim = rotary[i] ? rotary_dim : 0;
    layer.attention->window = rotary[i] ? chunk : 0;
    layer.attention->qk_norm = rotary[i] && qk_norm ? QkNorm::kPerHead : QkNorm::kNone;
    layer.attention->qk_norm_kind = NormKind::kRmsUnscaled;
    if (sparse[i]) {
      layer.mlp.reset();
      layer.moe = moe;
    }
    p.decoder.append(layer);
  }
  p.decoder.notes.push_back(fmt::format(
      "attention in chunks of {} tokens is priced as a sliding window of that length", chunk));
  return std::move(p.decoder);
}

namespace {

// GLM-4.5 and 4.6. The router's correction bias is counted, as in checkpoints.
Decoder read_glm4_moe(const Config& config) {
  Plain p = read_plain(config, "glm4_moe",
                       {.hidden = 4096,
                        .ffn = 10944,
                        .layers = 46,
                        .heads = 96,
                        .kv_heads = 8,
                        .vocab = 151552,
                        .positions = 131072});
  set_bias(p, config.flag_or({"attention_bias"}, false), false);
  p.layer.attention->rotary_dim = read_rotary_dim(config, p.sizes.head_dim, 0.5);
  if (config.flag_or({"use_qk_norm"}, false)) p.layer.attention->qk_norm = QkNorm::kPerHead;
  const std::int64_t ffn = config.size_or({"moe_intermediate_size"}, 1408);
  MoeSpec moe = read_moe(config, {.experts = 128, .top_k = 8}, ffn);
  moe.router_bias = true;
  moe.score = "sigmoid";
  moe.groups = config.count_or({"n_group"}, 1);
  moe.top_groups = config.count_or({"topk_group"}, 1);
  moe.shared_ffn = config.count_or({"n_shared_experts"}, 1) * ffn;
  p.decoder.mtp_layers = static_cast<int>(
      std::min<std::int64_t>(config.count_or({"num_nextn_predict_layers"}, 1), 16));
  const auto sparse = read_sparse_layers(config, p.sizes.layers, 1);
  return mixed(std::move(p), moe, sparse);
}

Decoder read_minimax_m2(const Config& config) {
  Plain p = read_plain(config, "minimax_m2",
                       {.hidden = 3072,
                        .ffn = 1536,
                        .layers = 62,
                        .heads = 48,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .vocab = 200064,
                        .positions = 196608});
  AttentionSpec& a = *p.layer.attention;
  a.q_bias = a.k_bias = a.v_bias = a.o_bias = false;
  if (config.flag_or({"use_qk_norm"}, true)) a.qk_norm = QkNorm::kFlat;
  if (config.has("rotary_dim")) a.rotary_dim = config.size({"rotary_dim"});
  if (a.rotary_dim > a.head_dim || a.rotary_dim % 2 != 0) {
    config.fail("rotary_dim",
                fmt::format("rotary_dim must be even and at most head_dim {}", a.head_dim));
  }
  MoeSpec moe = read_moe(config, {.experts = 256, .top_k = 8}, p.sizes.ffn);
  moe.router_bias = config.flag_or({"use_routing_bias"}, true);
  moe.score = "sigmoid";
  moe.shared_ffn = config.count_or({"shared_intermediate_size"}, 0);
  mixtral_names(p.decoder.names);
  return all_sparse(std::move(p), moe);
}

// Windowed layers have their own head counts and a sink logit per head; heads of values are
// narrower than those of queries.
Decoder read_mimo_v2(const Config& config) {
  Plain p = read_plain(config, "mimo_v2_flash",
                       {.hidden = 4096,
                        .ffn = 16384,
                        .layers = 48,
                        .heads = 64,
                        .kv_heads = 4,
                        .head_dim = 192,
                        .vocab = 152576,
                        .positions = 131072});
  const std::int64_t layers = p.sizes.layers;
  AttentionSpec full = *p.layer.attention;
  full.o_bias = false;
  full.value_dim = config.size_or({"v_head_dim"}, 128);
  full.rotary_dim = read_rotary_dim(config, full.head_dim, 0.334);
  full.sinks = config.flag_or({"add_full_attention_sink_bias"}, false);
  AttentionSpec local = full;
  local.heads = head_count(config, {"swa_num_attention_heads"}, full.heads);
  local.kv_heads = config.size_or({"swa_num_key_value_heads"}, 8);
  check_kv_heads(config, "swa_num_key_value_heads", local.kv_heads, "swa_num_attention_heads",
                 local.heads);
  local.head_dim = config.size_or({"swa_head_dim"}, full.head_dim);
  local.value_dim = config.size_or({"swa_v_head_dim"}, full.value_dim);
  local.rotary_dim = read_rotary_dim(config, local.head_dim, 0.334);
  local.window = config.size_or({"sliding_window"}, 128);
  local.sinks = config.flag_or({"add_swa_attention_sink_bias"}, true);
  std::vector<bool> sliding = read_sliding_layers(config, layers);
  if (sliding.empty()) {
    const std::vector<std::int64_t> listed = config.sizes_or_empty("hybrid_layer_pattern");
    if (!listed.empty()) check_layer_list(config, "hybrid_layer_pattern", listed.size(), layers);
    for (std::int64_t i = 0; i < layers; ++i) {
      sliding.push_back(listed.empty() ? i % 6 != 0 && i + 1 != layers
                                       : listed[static_cast<std::size_t>(i)] != 0);
    }
  }
  const std::int64_t ffn = config.size_or({"moe_intermediate_size"}, 2048);
  MoeSpec moe = read_moe(config, {.experts = 256, .top_k = 8}, ffn);
  moe.router_bias = true;
  moe.score = "sigmoid";
  moe.shared_ffn = config.count_or({"n_shared_experts"}, 0) * ffn;
  const std::vector<bool> sparse = read_sparse_layers(config, layers, 1);
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    LayerSpec layer = p.layer;
    layer.attention = sliding[i] ? local : full;
    if (sparse[i]) {
      layer.mlp.reset();
      layer.moe = moe;
    }
    p.decoder.append(layer);
  }
  return std::move(p.decoder);
}

// The first DeepSeek mixture: multi-head attention, shared experts.
Decoder read_deepseek(const Config& config) {
  Plain p = read_plain(config, "deepseek",
                       {.hidden = 4096, .ffn = 11008, .layers = 30, .heads = 32, .vocab = 102400});
  const std::int64_t ffn = config.size_or({"moe_intermediate_size"}, 1407);
  if (!config.has("n_routed_experts")) {
    p.decoder.repeat(p.layer, p.sizes.layers);
    return std::move(p.decoder);
  }
  MoeSpec moe = read_moe(config, {}, ffn);
  moe.shared_ffn = config.count_or({"n_shared_experts"}, 0) * ffn;
  const auto sparse = read_sparse_layers(config, p.sizes.layers, 0);
  return mixed(std::move(p), moe, sparse);
}

using Names = const std::string_view[];
constexpr Names kMixtralTypes = {"mixtral"};
constexpr Names kMixtralClasses = {"Mixtral"};
constexpr Names kQwen2MoeTypes = {"qwen2_moe"};
constexpr Names kQwen2MoeClasses = {"Qwen2Moe"};
constexpr Names kQwen3MoeTypes = {"qwen3_moe", "qwen3_vl_moe_text"};
constexpr Names kQwen3MoeClasses = {"Qwen3Moe"};
constexpr Names kOlmoeTypes = {"olmoe"};
constexpr Names kOlmoeClasses = {"Olmoe"};
constexpr Names kGraniteMoeTypes = {"granitemoe", "granitemoeshared"};
constexpr Names kGraniteMoeClasses = {"GraniteMoe", "GraniteMoeShared"};
constexpr Names kPhimoeTypes = {"phimoe"};
constexpr Names kPhimoeClasses = {"Phimoe", "PhiMoE"};
constexpr Names kDbrxTypes = {"dbrx"};
constexpr Names kDbrxClasses = {"Dbrx"};
constexpr Names kGptOssTypes = {"gpt_oss"};
constexpr Names kGptOssClasses = {"GptOss"};
constexpr Names kLlama4Types = {"llama4_text"};
constexpr Names kGlm4MoeTypes = {"glm4_moe"};
constexpr Names kGlm4MoeClasses = {"Glm4Moe"};
constexpr Names kMiniMaxM2Types = {"minimax_m2"};
constexpr Names kMiniMaxM2Classes = {"MiniMaxM2"};
constexpr Names kMimoV2Types = {"mimo_v2_flash"};
constexpr Names kMimoV2Classes = {"MiMoV2Flash"};
constexpr Names kDeepseekTypes = {"deepseek"};
constexpr Names kDeepseekClasses = {"Deepseek"};

}  // namespace

const Family kMixtral{"mixtral", "Mixtral", kMixtralTypes, kMixtralClasses,
                      build_with<read_mixtral>};
const Family kQwen2Moe{"qwen2_moe", "Qwen 1.5 and 2 mixtures of experts", kQwen2MoeTypes,
                       kQwen2MoeClasses, build_with<read_qwen2_moe>};
const Family kQwen3Moe{"qwen3_moe", "Qwen 3 mixtures of experts", kQwen3MoeTypes, kQwen3MoeClasses,
                       build_with<read_qwen3_moe>};
const Family kOlmoe{"olmoe", "OLMoE", kOlmoeTypes, kOlmoeClasses, build_with<read_olmoe>};
const Family kGraniteMoe{"granitemoe", "Granite 3 mixtures of experts", kGraniteMoeTypes,
                         kGraniteMoeClasses, build_with<read_granite_moe>};
const Family kPhimoe{"phimoe", "Phi-3.5-MoE", kPhimoeTypes, kPhimoeClasses,
                     build_with<read_phimoe>};
const Family kDbrx{"dbrx", "DBRX", kDbrxTypes, kDbrxClasses, build_with<read_dbrx>};
const Family kGptOss{"gpt_oss", "GPT-OSS", kGptOssTypes, kGptOssClasses, build_with<read_gpt_oss>};
const Family kLlama4{
    "llama4", "Llama 4 (language model)", kLlama4Types, {}, build_with<read_llama4>};
const Family kGlm4Moe{"glm4_moe", "GLM-4.5, GLM-4.6", kGlm4MoeTypes, kGlm4MoeClasses,
                      build_with<read_glm4_moe>};
const Family kMiniMaxM2{"minimax_m2", "MiniMax-M2", kMiniMaxM2Types, kMiniMaxM2Classes,
                        build_with<read_minimax_m2>};
const Family kMimoV2{"mimo_v2_flash", "MiMo-V2-Flash", kMimoV2Types, kMimoV2Classes,
                     build_with<read_mimo_v2>};
const Family kDeepseek{"deepseek", "DeepSeekMoE (first generation)", kDeepseekTypes,
                       kDeepseekClasses, build_with<read_deepseek>};

}  // namespace meshwright::hf
