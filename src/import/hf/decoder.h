#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "import/hf/blocks.h"
#include "import/hf/family.h"
#include "import/hf/vision.h"

namespace meshwright::hf {

/// One decoder layer: attention, then a dense or a mixture-of-experts network (or both, side by
/// side), each with its norms and residual.
struct LayerSpec {
  std::optional<AttentionSpec> attention;  ///< None: the layer has no attention.
  std::optional<MlpSpec> mlp;
  std::optional<MoeSpec> moe;
  bool parallel = false;      ///< x + attention(norm x) + mlp(norm x), as in GPT-J.
  bool shared_norm = false;   ///< Parallel layers: one norm feeds both.
  bool pre_norm = true;       ///< Norm before each sublayer.
  bool out_norm = false;      ///< Norm of each sublayer's result, before the residual (Gemma 2).
  bool post_norm = false;     ///< Norm after the residual (OPT-350m).
  double residual_scale = 1;  ///< Of each sublayer's result (Granite).

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

/// Module names, those of the library's class.
struct DecoderNames {
  std::string layers = "model.layers", embed = "model.embed_tokens",
              positions = "model.embed_positions", embed_norm = "model.embed_norm",
              final_norm = "model.norm", head = "lm_head";
  std::string attention = "self_attn", attention_norm = "input_layernorm",
              attention_out_norm = "post_attention_layernorm";
  std::string mlp = "mlp", mlp_norm = "post_attention_layernorm",
              mlp_out_norm = "post_feedforward_layernorm";
  std::string moe = "mlp";
  AttentionNames attn;
  MlpNames dense;
  MoeNames sparse;
};

/// A decoder-only language model. A family's reader fills it in from a configuration; layers that
/// are alike share one entry of `variants`.
struct Decoder {
  std::string family;
  std::int64_t vocab = 1, hidden = 1;
  std::int64_t max_positions = 2048;  ///< Bounds the default sequence length.
  NormKind norm = NormKind::kRms;
  NormKind embed_norm = NormKind::kNone;
  bool final_norm = true;
  std::int64_t embed_width = 0;    ///< Of the embedding table when projected to hidden (OPT-350m).
  std::int64_t position_rows = 0;  ///< Learned position table; 0 = none.
  double embed_scale = 1;
  bool tied = false;  ///< The head's weight is the embedding's.
  bool head_bias = false;
  double logit_scale = 1;
  double logit_softcap = 0;
  double embed_dropout = 0, hidden_dropout = 0;
  std::vector<LayerSpec> variants;
  std::vector<int> layers;  ///< Variant of each layer.
  int mtp_layers = 0;       ///< Multi-token-prediction modules, each with the last layer's variant.
  std::optional<VisionTower> vision;  ///< Its tokens come first in each sequence.
  DecoderNames names;
  std::vector<std::string> notes;

  /// Appends one layer; equal layers share a variant.
  void append(const LayerSpec& layer);
  void repeat(const LayerSpec& layer, std::int64_t count);
};

/// The training graph: embedding, layers, head, loss. Throws Error at `config` when the options do
/// not fit (a sequence longer than a learned position table).
Model build_decoder(const Decoder& decoder, const Config& config, const ImportOptions& options);

/// A family's builder from its reader.
template <Decoder (*Read)(const Config&)>
Model build_with(const Config& config, const ImportOptions& options) {
  return build_decoder(Read(config), config, options);
}

}  // namespace meshwright::hf
