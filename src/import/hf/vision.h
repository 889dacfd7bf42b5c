#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "import/hf/blocks.h"
#include "import/hf/config.h"

namespace meshwright::hf {

/// How patches become tokens of the language model. All but kPool put `merge` neighbouring patches
/// side by side.
enum class Connector {
  kMerger,   ///< Norm, two linears with GELU between (Qwen, Kimi).
  kPool,     ///< Mean of `merge` patches, norm, linear (Gemma 3).
  kShuffle,  ///< Two linears, each with GELU, and a third (Llama 4).
};

/// The image encoder of a vision-language model: patches -> blocks -> one token of the language
/// model per `merge` patches. One image per sequence is assumed.
struct VisionTower {
  std::string prefix = "visual", patch = "patch_embed.proj", blocks = "blocks",
              positions = "pos_embed", final_norm_name = "post_layernorm";
  std::int64_t patches = 1024;  ///< Per image; a multiple of `merge`.
  std::int64_t merge = 4;
  std::int64_t patch_width = 1;  ///< Numbers in one patch: channels * frames * side^2.
  std::int64_t hidden = 1;
  std::int64_t depth = 1;
  bool patch_bias = false;
  std::int64_t position_rows = 0;  ///< Learned position table; 0 = none.
  NormKind norm = NormKind::kLayer;
  NormKind final_norm = NormKind::kNone;
  AttentionSpec attention;
  MlpSpec mlp;
  std::int64_t window = 0;         ///< Of blocks that are not listed in `full`.
  std::vector<std::int64_t> full;  ///< Blocks that attend to all patches; empty = all.
  AttentionNames attn = {"attn.qkv.q", "attn.qkv.k", "attn.qkv.v", "attn.proj", "", ""};
  MlpNames dense = {"mlp.gate_proj", "mlp.fc1", "mlp.fc2"};
  std::string attention_norm = "norm1", mlp_norm = "norm2";

  bool class_token = false;             ///< One more position in the blocks, dropped after them.
  NormKind pre_norm = NormKind::kNone;  ///< Before the blocks.

  Connector connector = Connector::kMerger;
  std::int64_t merger_width = 0;  ///< Of the inner linears of kShuffle.
  std::string merger = "merger", merger_norm = "norm", merger_in = "linear_fc1",
              merger_out = "linear_fc2";
  /// Intermediate results that go through mergers of their own and are added after the first
  /// layers of the language model (Qwen 3-VL's DeepStack), by block.
  std::vector<std::int64_t> deepstack;

  std::int64_t tokens() const { return patches / merge; }
};

struct VisionFeatures {
  ValueId tokens;                  ///< [batch, patches / merge, hidden of the language model]
  std::vector<ValueId> deepstack;  ///< The same shape, one per entry of `deepstack`.
};

/// Adds the tower's operators and its input `pixel_values` [batch, patches, patch_width].
VisionFeatures build_vision(GraphBuilder& b, const VisionTower& tower, std::int64_t batch,
                            std::int64_t text_hidden, const ImportOptions& options);

/// Towers by the `vision_config` of their model; `hidden` is the language model's width.
VisionTower read_qwen2_vision(const Config& vision);
VisionTower read_qwen2_5_vision(const Config& vision);
VisionTower read_qwen3_vision(const Config& vision);
VisionTower read_siglip_vision(const Config& vision, std::int64_t tokens);
VisionTower read_kimi_vision(const Config& vision);
VisionTower read_llama4_vision(const Config& vision);

/// A rough number of parameters of any transformer encoder (embeddings and connector left out);
/// 0 when the configuration lacks the sizes.
double estimate_vision_parameters(const Config& vision);

}  // namespace meshwright::hf
