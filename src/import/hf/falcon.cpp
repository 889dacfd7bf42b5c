// Falcon, BLOOM, MPT and OPT: the large open models of 2022 and 2023.
#include <fmt/format.h>

#include "import/hf/families.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

Plain read_old_plain(const Config& config, std::string_view family, const SizeDefaults& sizes,
                     std::string_view act, bool bias) {
  Plain p = read_plain(config, family, sizes);
  AttentionSpec& a = *p.layer.attention;
  a.rotary_dim = 0;
  a.q_bias = a.k_bias = a.v_bias = a.o_bias = bias;
  p.layer.mlp->gated = false;
  p.layer.mlp->act = read_activation(config, {"activation_function", "activation"}, act);
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = bias;
  p.decoder.norm = NormKind::kLayer;
  p.decoder.hidden_dropout = config.number_or({"hidden_dropout", "resid_pdrop", "dropout"}, 0);
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  return p;
}

Decoder finish(Plain p) {
  p.decoder.repeat(p.layer, p.sizes.layers);
  return std::move(p.decoder);
}

// 7B: one key/value head, one norm, parallel. 40B and 180B ("new decoder architecture"): 8 or more
// key/value heads, two norms. RW-1B: as GPT-3 with linear position biases.
Decoder read_falcon(const Config& config) {
  Plain p =
      read_old_plain(config, "falcon",
                     {.hidden = 4544, .layers = 32, .heads = 71, .vocab = 65024, .positions = 2048},
                     "gelu", config.flag_or({"bias"}, false));
  AttentionSpec& a = *p.layer.attention;
  const bool renewed = config.flag_or({"new_decoder_architecture"},
                                      config.has_any({"n_head_kv", "num_kv_heads"}) &&
                                          config.text_or({"model_type"}, "") == "RefinedWeb");
  if (!renewed) a.kv_heads = config.flag_or({"multi_query"}, true) ? 1 : p.sizes.heads;
  a.alibi = config.flag_or({"alibi"}, false);
  a.rotary_dim = a.alibi ? 0 : p.sizes.head_dim;
  p.layer.parallel = renewed || config.flag_or({"parallel_attn"}, true);
  p.layer.shared_norm =
      p.layer.parallel && config.size_or({"num_ln_in_parallel_attn"}, renewed ? 2 : 1) != 2;
  DecoderNames& n = p.decoder.names;
  n.layers = "transformer.h";
  n.embed = "transformer.word_embeddings";
  n.final_norm = "transformer.ln_f";
  n.attention = "self_attention";
  n.attn = {"query_key_value.q", "query_key_value.k", "query_key_value.v", "dense", "", ""};
  n.dense = {"", "dense_h_to_4h", "dense_4h_to_h"};
  if (p.layer.parallel && !p.layer.shared_norm) {
    n.attention_norm = "ln_attn";
    n.mlp_norm = "ln_mlp";
  }
  return finish(std::move(p));
}

Decoder read_bloom(const Config& config) {
  Plain p = read_old_plain(
      config, "bloom", {.hidden = 64, .layers = 2, .heads = 8, .vocab = 250880, .positions = 2048},
      "gelu_new", true);
  p.layer.mlp->ffn = 4 * p.sizes.hidden;  // n_inner is always null.
  p.layer.attention->alibi = true;
  p.decoder.embed_norm = NormKind::kLayer;
  DecoderNames& n = p.decoder.names;
  n.layers = "transformer.h";
  n.embed = "transformer.word_embeddings";
  n.embed_norm = "transformer.word_embeddings_layernorm";
  n.final_norm = "transformer.ln_f";
  n.attention = "self_attention";
  n.attn = {"query_key_value.q", "query_key_value.k", "query_key_value.v", "dense", "", ""};
  n.dense = {"", "dense_h_to_4h", "dense_4h_to_h"};
  return finish(std::move(p));
}

Decoder read_mpt(const Config& config) {
  Plain p = read_old_plain(
      config, "mpt", {.hidden = 2048, .layers = 24, .heads = 16, .vocab = 50368, .positions = 2048},
      "gelu", !config.flag_or({"no_bias"}, true));
  p.layer.mlp->ffn = config.size_or({"expansion_ratio"}, 4) * p.sizes.hidden;
  AttentionSpec& a = *p.layer.attention;
  a.alibi = true;
  if (config.has_nested("attn_config")) {
    const Config attn = config.nested("attn_config");
    a.alibi = attn.flag_or({"alibi"}, true);
    a.dropout = attn.number_or({"attn_pdrop"}, 0);
    if (attn.flag_or({"qk_ln"}, false)) {
      attn.fail("qk_ln", "MPT with norms of queries and keys is not supported");
    }
    const std::string type = attn.text_or({"attn_type"}, "multihead_attention");
    const std::int64_t fallback = type == "multiquery_attention" ? 1 : p.sizes.heads;
    a.kv_heads = attn.size_or({"kv_n_heads"}, fallback);
    check_kv_heads(attn, "kv_n_heads", a.kv_heads, "n_heads", p.sizes.heads);
  }
  if (!a.alibi && config.flag_or({"learned_pos_emb"}, true)) {
    p.decoder.position_rows = p.sizes.positions;
  }
  p.decoder.norm = p.layer.mlp->up_bias ? NormKind::kLayer : NormKind::kLayerNoBias;
  p.decoder.embed_dropout = config.number_or({"emb_pdrop"}, 0);
  DecoderNames& n = p.decoder.names;
  n.layers = "transformer.blocks";
  n.embed = "transformer.wte";
  n.positions = "transformer.wpe";
  n.final_norm = "transformer.norm_f";
  n.attention = "attn";
  n.attention_norm = "norm_1";
  n.attn = {"Wqkv.q", "Wqkv.k", "Wqkv.v", "out_proj", "", ""};
  n.mlp = "ffn";
  n.mlp_norm = "norm_2";
  n.dense = {"", "up_proj", "down_proj"};
  return finish(std::move(p));
}

// The 350M model embeds in a smaller width and normalizes after the residual. Rows 0 and 1 of the
// position table are reserved.
Decoder read_opt(const Config& config) {
  Plain p = read_old_plain(
      config, "opt", {.hidden = 768, .layers = 12, .heads = 12, .vocab = 50272, .positions = 2048},
      "relu", config.flag_or({"enable_bias"}, true));
  p.decoder.hidden_dropout = config.number_or({"dropout"}, 0.1);
  const std::int64_t width = config.size_or({"word_embed_proj_dim"}, p.sizes.hidden);
  if (width != p.sizes.hidden) p.decoder.embed_width = width;
  p.decoder.position_rows = p.sizes.positions + 2;
  const bool before = config.flag_or({"do_layer_norm_before"}, true);
  p.layer.pre_norm = before;
  p.layer.post_norm = !before;
  p.decoder.final_norm = before && !config.flag_or({"_remove_final_layer_norm"}, false);
  if (!config.flag_or({"layer_norm_elementwise_affine"}, true)) {
    p.decoder.norm = NormKind::kLayerUnscaled;
  }
  DecoderNames& n = p.decoder.names;
  n.layers = "model.decoder.layers";
  n.embed = "model.decoder.embed_tokens";
  n.positions = "model.decoder.embed_positions";
  n.final_norm = "model.decoder.final_layer_norm";
  n.attention_norm = "self_attn_layer_norm";
  n.attn = {"q_proj", "k_proj", "v_proj", "out_proj", "", ""};
  n.mlp = "fc";
  n.mlp_norm = "final_layer_norm";
  n.dense = {"", "fc1", "fc2"};
  return finish(std::move(p));
}

using Names = const std::string_view[];
constexpr Names kFalconTypes = {"falcon", "RefinedWeb", "RefinedWebModel"};
constexpr Names kFalconClasses = {"Falcon", "RW"};
constexpr Names kBloomTypes = {"bloom"};
constexpr Names kBloomClasses = {"Bloom"};
constexpr Names kMptTypes = {"mpt"};
constexpr Names kMptClasses = {"MPT", "Mpt"};
constexpr Names kOptTypes = {"opt"};
constexpr Names kOptClasses = {"OPT"};

}  // namespace

const Family kFalcon{"falcon", "Falcon", kFalconTypes, kFalconClasses, build_with<read_falcon>};
const Family kBloom{"bloom", "BLOOM", kBloomTypes, kBloomClasses, build_with<read_bloom>};
const Family kMpt{"mpt", "MPT", kMptTypes, kMptClasses, build_with<read_mpt>};
const Family kOpt{"opt", "OPT", kOptTypes, kOptClasses, build_with<read_opt>};

}  // namespace meshwright::hf
