#include "import/hf/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace meshwright::hf {
namespace {

constexpr std::string_view kHidden[] = {"hidden_size", "n_embd", "d_model", "n_embed"};
constexpr std::string_view kFfn[] = {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"};
constexpr std::string_view kLayers[] = {"num_hidden_layers", "n_layer", "num_layers", "n_layers"};
constexpr std::string_view kHeads[] = {"num_attention_heads", "n_head", "num_heads", "n_heads"};
constexpr std::string_view kKvHeads[] = {"num_key_value_heads", "num_kv_heads", "n_head_kv",
                                         "multi_query_group_num"};
constexpr std::string_view kHeadDim[] = {"head_dim", "kv_channels"};
constexpr std::string_view kVocab[] = {"vocab_size", "padded_vocab_size"};
constexpr std::string_view kPositions[] = {
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
    "model_max_length"};

// "1, 2, 4, 8": what divides n, shortened in the middle when long.
std::string divisors(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  std::sort(all.begin(), all.end());
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all.size() > 16 && i == 12) {
      text += ", …";
      i = all.size() - 2;
      continue;
    }
    text += fmt::format("{}{}", i == 0 ? "" : ", ", all[i]);
  }
  return text;
}

double partial_rotary(const Config& config, double fallback) {
  constexpr std::string_view kKeys[] = {"partial_rotary_factor", "rotary_pct", "rope_pct"};
  if (config.has_any(kKeys)) return config.number_or(kKeys, fallback);
  for (std::string_view key : {"rope_parameters", "rope_scaling"}) {
    if (config.has_nested(key) && config.nested(key).has("partial_rotary_factor")) {
      return config.nested(key).number_or({"partial_rotary_factor"}, fallback);
    }
  }
  return fallback;
}

// The sizes that decide what model this is and that the file does not have.
std::string defaulted_sizes(const Config& config, const Sizes& sizes) {
  struct Core {
    Keys keys;
    std::int64_t value;
  };
  const Core core[] = {{kHidden, sizes.hidden},
                       {kLayers, sizes.layers},
                       {kHeads, sizes.heads},
                       {kVocab, sizes.vocab}};
  std::string text;
  for (const Core& c : core) {
    if (config.has_any(c.keys)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", *c.keys.begin(), c.value);
  }
  return text;
}

}  // namespace

std::int64_t head_count(const Config& config, Keys keys, std::int64_t fallback) {
  constexpr std::int64_t kMaxHeads = 1 << 20;
  const std::int64_t heads = config.core_size_or(keys, fallback);
  if (heads > kMaxHeads) {
    const std::string_view key = config.present_key(keys);
    config.fail(key, fmt::format("{} must be at most {}, but is {}", key, kMaxHeads, heads));
  }
  return heads;
}

void check_kv_heads(const Config& config, std::string_view kv_key, std::int64_t kv_heads,
                    std::string_view heads_key, std::int64_t heads) {
  if (heads % kv_heads == 0) return;
  config.fail(kv_key,
              fmt::format("{} {}{} does not divide {} {}", kv_key, kv_heads,
                          config.has(kv_key) ? "" : " (the library's default)", heads_key, heads),
              "legal: " + divisors(heads));
}

Sizes read_sizes(const Config& config, const SizeDefaults& defaults) {
  Sizes s;
  s.hidden = config.core_size_or(kHidden, defaults.hidden);
  s.layers = layer_count(config, kLayers, defaults.layers);
  s.heads = head_count(config, kHeads, defaults.heads);
  s.vocab = config.core_size_or(kVocab, defaults.vocab);
  s.ffn = config.size_or(kFfn, defaults.ffn > 0 ? defaults.ffn : 4 * s.hidden);
  s.positions = config.size_or(kPositions, defaults.positions);
  const std::string_view heads_key = config.present_key(kHeads);
  const std::string_view kv_key = config.present_key(kKvHeads);
  // An explicit null means "as many as query heads", whatever the class's default is.
  const bool kv_default = defaults.kv_heads > 0 && !config.is_null("num_key_value_heads");
  s.kv_heads = config.size_or(kKvHeads, kv_default ? defaults.kv_heads : s.heads);
  check_kv_heads(config, kv_key, s.kv_heads, heads_key, s.heads);
  if (config.has_any(kHeadDim) || (defaults.head_dim > 0 && !config.is_null("head_dim"))) {
    s.head_dim = config.size_or(kHeadDim, defaults.head_dim);
  } else if (defaults.free_heads) {
    s.head_dim = 1;
  } else {
    if (s.hidden % s.heads != 0) {
      config.fail(heads_key,
                  fmt::format("{} {} does not divide {} {}, and no head_dim is given", heads_key,
                              s.heads, config.present_key(kHidden), s.hidden),
                  "legal: " + divisors(s.hidden));
    }
    s.head_dim = s.hidden / s.heads;
  }
  return s;
}

std::string read_activation(const Config& config, Keys keys, std::string_view fallback) {
  const std::string name = config.text_or(keys, fallback);
  const std::string_view kind = activation_kind(name);
  if (kind.empty()) {
    const std::string_view key = config.present_key(keys);
    config.fail(key, fmt::format("{} '{}' is not supported", key, name),
                "supported: gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, silu, "
                "swish, relu, relu2, tanh, sigmoid");
  }
  return std::string(kind);
}

std::int64_t read_rotary_dim(const Config& config, std::int64_t head_dim, double fallback) {
  const double share = partial_rotary(config, fallback);
  if (share < 0 || share > 1) {
    config.fail("partial_rotary_factor",
                fmt::format("the rotated share of a head must be from 0 to 1, but is {}", share));
  }
  const auto dims = static_cast<std::int64_t>(share * static_cast<double>(head_dim));
  return dims - dims % 2;
}

void check_layer_list(const Config& config, std::string_view key, std::size_t entries,
                      std::int64_t layers) {
  if (static_cast<std::int64_t>(entries) == layers) return;
  config.fail(key, fmt::format("{} has {} entries for {} layers", key, entries, layers));
}

std::vector<bool> read_sliding_layers(const Config& config, std::int64_t layers) {
  std::vector<bool> sliding;
  const std::vector<std::string> types = config.texts_or_empty("layer_types");
  if (types.empty()) return sliding;
  check_layer_list(config, "layer_types", types.size(), layers);
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention" && type != "chunked_attention" &&
        type != "attention") {
      config.fail("layer_types", fmt::format("layers of type '{}' are not supported", type),
                  "supported: full_attention, sliding_attention, chunked_attention");
    }
    sliding.push_back(type != "full_attention" && type != "attention");
  }
  return sliding;
}

Plain read_plain(const Config& config, std::string_view family, const SizeDefaults& defaults) {
  Plain p;
  p.sizes = read_sizes(config, defaults);
  const std::string defaulted = defaulted_sizes(config, p.sizes);
  if (!defaulted.empty()) {
    p.decoder.notes.push_back("sizes that the file leaves to the library's defaults: " + defaulted);
  }
  p.decoder.family = std::string(family);
  p.decoder.vocab = p.sizes.vocab;
  p.decoder.hidden = p.sizes.hidden;
  p.decoder.max_positions = p.sizes.positions;
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, false);
  AttentionSpec attention;
  attention.heads = p.sizes.heads;
  attention.kv_heads = p.sizes.kv_heads;
  attention.head_dim = p.sizes.head_dim;
  attention.rotary_dim = read_rotary_dim(config, p.sizes.head_dim);
  attention.dropout = config.number_or({"attention_dropout"}, 0);
  const bool bias = config.flag_or({"attention_bias"}, false);
  attention.q_bias = attention.k_bias = attention.v_bias = attention.o_bias = bias;
  p.layer.attention = attention;
  MlpSpec mlp;
  mlp.ffn = p.sizes.ffn;
  mlp.gated = true;
  mlp.act = read_activation(config, {"hidden_act", "hidden_activation"}, "silu");
  mlp.up_bias = mlp.down_bias = config.flag_or({"mlp_bias"}, false);
  p.layer.mlp = mlp;
  return p;
}

MoeSpec read_moe(const Config& config, const MoeDefaults& defaults, std::int64_t ffn) {
  constexpr std::string_view kExperts[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                           "moe_num_experts"};
  constexpr std::string_view kTopK[] = {"num_experts_per_tok",
                                        "num_experts_per_token",
                                        "experts_per_token",
                                        "moe_top_k",
                                        "moe_topk",
                                        "moe_k"};
  MoeSpec moe;
  moe.experts = config.core_size_or(kExperts, defaults.experts);
  moe.top_k = defaults.top_k > 0 ? config.core_size_or(kTopK, defaults.top_k) : config.size(kTopK);
  moe.ffn = ffn;
  if (moe.top_k > moe.experts) {
    const std::string_view key = config.present_key(kTopK);
    config.fail(key, fmt::format("{} is {}, but there are only {} experts ({})", key, moe.top_k,
                                 moe.experts, config.present_key(kExperts)));
  }
  return moe;
}

std::vector<bool> read_sparse_layers(const Config& config, std::int64_t layers,
                                     std::int64_t first) {
  std::vector<bool> sparse;
  const std::vector<std::string> types = config.texts_or_empty("mlp_layer_types");
  if (!types.empty()) {
    check_layer_list(config, "mlp_layer_types", types.size(), layers);
    for (const std::string& type : types) sparse.push_back(type == "sparse");
    return sparse;
  }
  if (config.is_list("moe_layer_freq")) {
    const std::vector<std::int64_t> listed = config.sizes_or_empty("moe_layer_freq");
    check_layer_list(config, "moe_layer_freq", listed.size(), layers);
    for (std::int64_t flag : listed) sparse.push_back(flag != 0);
    return sparse;
  }
  const std::int64_t dense = config.count_or({"first_k_dense_replace"}, first);
  const std::int64_t step = config.size_or({"moe_layer_freq"}, 1);
  for (std::int64_t i = 0; i < layers; ++i) sparse.push_back(i >= dense && i % step == 0);
  return sparse;
}

DecoderNames gpt_names() {
  DecoderNames n;
  n.layers = "transformer.h";
  n.embed = "transformer.wte";
  n.positions = "transformer.wpe";
  n.final_norm = "transformer.ln_f";
  n.attention = "attn";
  n.attention_norm = "ln_1";
  n.mlp = "mlp";
  n.mlp_norm = "ln_2";
  n.attn = {"c_attn.q", "c_attn.k", "c_attn.v", "c_proj", "q_ln", "k_ln"};
  n.dense = {"c_gate", "c_fc", "c_proj"};
  return n;
}

}  // namespace meshwright::hf
