#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "import/hf/decoder.h"

namespace meshwright::hf {

/// The library's defaults of a family's configuration class.
struct SizeDefaults {
  std::int64_t hidden = 0, ffn = 0, layers = 0, heads = 0;
  std::int64_t kv_heads = 0;  ///< 0 = heads.
  std::int64_t head_dim = 0;  ///< 0 = hidden / heads.
  std::int64_t vocab = 0, positions = 2048;
  bool free_heads =
      false;  ///< Heads need not divide hidden (latent attention has widths of its own).
};

/// The sizes that every decoder-only configuration has, under any of the names in use
/// ("hidden_size", "n_embd", "d_model"), checked against each other.
struct Sizes {
  std::int64_t hidden = 0, ffn = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0,
               positions = 0;
};
/// Throws Error with the legal values when heads do not divide hidden (and no head_dim is given) or
/// kv heads do not divide heads.
Sizes read_sizes(const Config& config, const SizeDefaults& defaults);

/// Number of attention heads, at most 2^20 (so that products with head widths cannot overflow).
std::int64_t head_count(const Config& config, Keys keys, std::int64_t fallback);

/// Throws Error with the legal values unless `kv_heads` divides `heads`.
void check_kv_heads(const Config& config, std::string_view kv_key, std::int64_t kv_heads,
                    std::string_view heads_key, std::int64_t heads);

/// Operator kind of the activation named at the first of `keys`; an unknown name is an Error.
std::string read_activation(const Config& config, Keys keys, std::string_view fallback);

/// Dims of a head that are rotated: `fallback` (a share of head_dim) unless the configuration, its
/// rope_parameters or its rope_scaling give partial_rotary_factor.
std::int64_t read_rotary_dim(const Config& config, std::int64_t head_dim, double fallback = 1);

/// Throws Error unless a per-layer list has one entry per layer.
void check_layer_list(const Config& config, std::string_view key, std::size_t entries,
                      std::int64_t layers);

/// layer_types as one flag per layer, true where attention is a sliding (or chunked) window. Empty
/// when the list is absent; an Error for any layer that is not attention.
std::vector<bool> read_sliding_layers(const Config& config, std::int64_t layers);

/// A plain Llama-like model: pre-RMSNorm, rotary positions, gated MLP, `attention_bias` and
/// `mlp_bias` as given. Families change `layer` and `decoder`, then repeat the layer.
struct Plain {
  Sizes sizes;
  LayerSpec layer;
  Decoder decoder;
};
Plain read_plain(const Config& config, std::string_view family, const SizeDefaults& defaults);

/// Routed experts, gated by silu, under the names in use ("num_experts", "num_local_experts",
/// "n_routed_experts"). Throws Error when top-k exceeds the number of experts.
struct MoeDefaults {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;  ///< 0 = must be given.
};
/// `ffn` is the width of one expert.
MoeSpec read_moe(const Config& config, const MoeDefaults& defaults, std::int64_t ffn);

/// Which layers have experts: mlp_layer_types, moe_layer_freq (one number or a list) from
/// first_k_dense_replace (default `first`) on.
std::vector<bool> read_sparse_layers(const Config& config, std::int64_t layers, std::int64_t first);

/// The names of the library's GPT-2 and its relatives (module "transformer.h").
DecoderNames gpt_names();

}  // namespace meshwright::hf
