#include "import/hf/vision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "import/hf/family.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

// [batch, patches, width] -> [batch, patches / merge, merge * width]: neighbours side by side.
ValueId gather_patches(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t merge,
                       const char* pattern) {
  return b.op("reshape", name, {x},
              {{"pattern", std::string(pattern)},
               {"sizes", fmt::format("m={}", merge)},
               {"names", std::string("m=hidden")}});
}

ValueId merge_patches(GraphBuilder& b, const VisionTower& t, const std::string& name, ValueId x,
                      bool norm_after, std::int64_t out) {
  const auto scope = b.scope(name);
  if (!norm_after) x = norm(b, t.norm, t.merger_norm, x);
  x = gather_patches(b, "gather", x, t.merge, "b (p m) h -> b p (m h)");
  if (norm_after) x = norm(b, t.norm, t.merger_norm, x);
  x = b.linear(t.merger_in, x, {"ffn", t.merge * t.hidden, 1}, true);
  x = b.op("gelu", "act", {x});
  return b.linear(t.merger_out, x, {"hidden", out, 1}, true);
}

ValueId shuffle_patches(GraphBuilder& b, const VisionTower& t, ValueId x, std::int64_t out) {
  {
    const auto scope = b.scope(t.merger);
    const Dim inner{"ffn", t.merger_width, 1};
    x = gather_patches(b, "gather", x, t.merge, "b (p m) h -> b p (m h)");
    x = b.op("gelu", "act_in", {b.linear(t.merger_in, x, inner, false)});
    x = b.op("gelu", "act_out", {b.linear(t.merger_out, x, {"hidden", t.merger_width, 1}, false)});
  }
  return b.linear("multi_modal_projector", x, {"hidden", out, 1}, false);
}

ValueId pool_patches(GraphBuilder& b, const VisionTower& t, ValueId x, std::int64_t out) {
  const auto scope = b.scope(t.merger);
  x = gather_patches(b, "gather", x, t.merge, "b (p m) h -> b p m h");
  x = b.op("mean_pool", "pool", {x}, {{"dim", std::int64_t{2}}});
  x = norm(b, NormKind::kRms, t.merger_norm, x);
  return b.linear(t.merger_out, x, {"hidden", out, 1}, false);
}

ValueId connect(GraphBuilder& b, const VisionTower& t, ValueId x, std::int64_t out) {
  switch (t.connector) {
    case Connector::kMerger:
      return merge_patches(b, t, t.merger, x, false, out);
    case Connector::kPool:
      return pool_patches(b, t, x, out);
    case Connector::kShuffle:
      return shuffle_patches(b, t, x, out);
  }
  throw InternalError("unknown connector");
}

ValueId block(GraphBuilder& b, const VisionTower& t, std::int64_t index, bool full, ValueId x,
              const ImportOptions& options) {
  const auto scope = b.scope(fmt::format("{}.{}", t.blocks, index));
  AttentionSpec attention = t.attention;
  attention.window = full ? 0 : t.window;
  ValueId y =
      attention_block(b, {norm(b, t.norm, t.attention_norm, x)}, attention, t.attn, options);
  x = b.op("add", "attn.residual", {x, y});
  y = mlp_block(b, norm(b, t.norm, t.mlp_norm, x), t.mlp, t.dense);
  return b.op("add", "mlp.residual", {x, y});
}

std::int64_t bounded(const Config& v, Keys keys, std::int64_t fallback, std::int64_t most) {
  const std::int64_t size = v.size_or(keys, fallback);
  if (size > most) {
    const std::string_view key = v.present_key(keys);
    v.fail(key, fmt::format("{} must be at most {}, but is {}", key, most, size));
  }
  return size;
}

// One flag per block, from a list of block numbers.
std::vector<bool> flags(const std::vector<std::int64_t>& listed, std::int64_t count) {
  std::vector<bool> result(static_cast<std::size_t>(count));
  for (std::int64_t i : listed) {
    if (i >= 0 && i < count) result[static_cast<std::size_t>(i)] = true;
  }
  return result;
}

// What the towers have in common: bidirectional attention with biases, one key per query head.
VisionTower read_tower(const Config& v, Keys hidden, std::int64_t default_hidden, Keys depth,
                       std::int64_t default_depth, Keys heads, std::int64_t default_heads) {
  VisionTower t;
  t.hidden = v.size_or(hidden, default_hidden);
  const std::string_view depth_key = v.present_key(depth);
  t.depth = v.size_or(depth, default_depth);
  if (t.depth > 1000) {
    v.fail(depth_key, fmt::format("{} must be at most 1000, but is {}", depth_key, t.depth));
  }
  t.attention.heads = t.attention.kv_heads = bounded(v, heads, default_heads, 1 << 20);
  if (t.hidden % t.attention.heads != 0) {
    v.fail(v.present_key(heads), fmt::format("{} attention heads do not divide the width {}",
                                             t.attention.heads, t.hidden));
  }
  t.attention.head_dim = t.hidden / t.attention.heads;
  t.attention.causal = false;
  t.attention.q_bias = t.attention.k_bias = t.attention.v_bias = t.attention.o_bias = true;
  t.mlp.up_bias = t.mlp.down_bias = true;
  return t;
}

constexpr std::string_view kHiddenKeys[] = {"hidden_size", "mm_hidden_size", "vt_hidden_size"};
constexpr std::string_view kDepthKeys[] = {"depth", "num_hidden_layers", "vt_num_hidden_layers"};
constexpr std::string_view kHeadKeys[] = {"num_heads", "num_attention_heads",
                                          "vt_num_attention_heads"};
constexpr std::string_view kFfnKeys[] = {"intermediate_size", "vt_intermediate_size"};

std::int64_t read_patch_width(const Config& v, std::int64_t side, std::int64_t frames) {
  side = bounded(v, {"patch_size", "spatial_patch_size"}, side, 4096);
  frames = frames > 1 ? bounded(v, {"temporal_patch_size"}, frames, 64) : 1;
  return bounded(v, {"in_channels", "in_chans", "num_channels"}, 3, 1024) * frames * side * side;
}

std::int64_t read_merge(const Config& v) {
  const std::int64_t side = bounded(v, {"spatial_merge_size"}, 2, 16);
  return side * side;
}

// 1,024 patches, about a 450 x 450 image, in whole tokens.
std::int64_t usual_patches(std::int64_t merge) {
  return std::max<std::int64_t>(1024 / merge, 1) * merge;
}

}  // namespace

VisionFeatures build_vision(GraphBuilder& b, const VisionTower& t, std::int64_t batch,
                            std::int64_t text_hidden, const ImportOptions& options) {
  const ValueId pixels = b.input(
      "pixel_values",
      {b.dtype(), {{"batch", batch, 1}, {"patches", t.patches, 1}, {"pixels", t.patch_width, 1}}});
  const auto scope = b.scope(t.prefix);
  VisionFeatures features;
  ValueId x = b.linear(t.patch, pixels, {"hidden", t.hidden, 1}, t.patch_bias);
  std::int64_t positions = t.patches;
  if (t.class_token) {
    const ValueId token =
        b.parameter("class_embedding", {{"patches", 1, 1}, {"hidden", t.hidden, 1}});
    x = b.op("concat", "class_token", {x, token}, {{"dim", std::int64_t{1}}});
    ++positions;
  }
  if (t.position_rows > 0) {
    const ValueId ids = b.buffer("position_ids", {DType::kI64, {{"patches", positions, 1}}});
    const ValueId table = b.parameter(t.positions + ".weight",
                                      {{"positions", t.position_rows, 1}, {"hidden", t.hidden, 1}});
    x = b.op("add", t.positions + ".add", {x, b.op("embedding", t.positions, {ids, table})});
  }
  x = norm(b, t.pre_norm, "layernorm_pre", x);
  std::vector<ValueId> taken;
  const std::vector<bool> full = flags(t.full, t.depth);
  const std::vector<bool> deep = flags(t.deepstack, t.depth);
  for (std::int64_t i = 0; i < t.depth; ++i) {
    const auto at = static_cast<std::size_t>(i);
    x = block(b, t, i, t.full.empty() || full[at], x, options);
    if (deep[at]) taken.push_back(x);
  }
  x = norm(b, t.final_norm, t.final_norm_name, x);
  if (t.class_token) {
    x = b.op("slice", "patches", {x}, {{"dim", std::int64_t{1}}, {"length", t.patches}});
  }
  features.tokens = connect(b, t, x, text_hidden);
  // After all blocks, so that each block's operators are contiguous.
  for (std::size_t i = 0; i < taken.size(); ++i) {
    features.deepstack.push_back(
        merge_patches(b, t, fmt::format("deepstack_merger_{}", i), taken[i], true, text_hidden));
  }
  return features;
}

VisionTower read_qwen2_vision(const Config& v) {
  VisionTower t = read_tower(v, {"embed_dim"}, 1280, {"depth"}, 32, {"num_heads"}, 16);
  t.patch_width = read_patch_width(v, 14, 2);
  t.merge = read_merge(v);
  t.patches = usual_patches(t.merge);
  t.attention.rotary_dim = t.attention.head_dim;
  t.mlp.ffn = bounded(v, {"mlp_ratio"}, 4, 1024) * t.hidden;
  t.mlp.act = read_activation(v, {"hidden_act"}, "quick_gelu");
  t.merger_norm = "ln_q";
  t.merger_in = "mlp.in";
  t.merger_out = "mlp.out";
  return t;
}

VisionTower read_qwen2_5_vision(const Config& v) {
  VisionTower t = read_tower(v, {"hidden_size"}, 3584, {"depth"}, 32, {"num_heads"}, 16);
  t.patch_width = read_patch_width(v, 14, 2);
  t.merge = read_merge(v);
  t.patches = usual_patches(t.merge);
  t.attention.rotary_dim = t.attention.head_dim;
  t.norm = NormKind::kRms;
  t.mlp.ffn = v.size_or({"intermediate_size"}, 3420);
  t.mlp.gated = true;
  t.mlp.act = read_activation(v, {"hidden_act"}, "silu");
  t.dense = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
  const std::int64_t side = bounded(v, {"window_size"}, 112, 65536) /
                            bounded(v, {"patch_size", "spatial_patch_size"}, 14, 4096);
  t.window = std::max<std::int64_t>(side * side, 1);
  t.full = v.sizes_or_empty("fullatt_block_indexes");
  if (!v.has("fullatt_block_indexes")) t.full = {7, 15, 23, 31};
  t.merger_norm = "ln_q";
  t.merger_in = "mlp.in";
  t.merger_out = "mlp.out";
  return t;
}

VisionTower read_qwen3_vision(const Config& v) {
  VisionTower t = read_tower(v, {"hidden_size"}, 1152, {"depth"}, 27, {"num_heads"}, 16);
  t.patch_width = read_patch_width(v, 16, 2);
  t.patch_bias = true;
  t.merge = read_merge(v);
  t.patches = usual_patches(t.merge);
  t.position_rows = v.size_or({"num_position_embeddings"}, 2304);
  t.attention.rotary_dim = t.attention.head_dim;
  t.mlp.ffn = v.size_or({"intermediate_size"}, 4304);
  t.mlp.act = read_activation(v, {"hidden_act"}, "gelu_pytorch_tanh");
  t.dense = {"", "mlp.linear_fc1", "mlp.linear_fc2"};
  t.deepstack = v.sizes_or_empty("deepstack_visual_indexes");
  if (!v.has("deepstack_visual_indexes")) t.deepstack = {8, 16, 24};
  return t;
}

VisionTower read_siglip_vision(const Config& v, std::int64_t tokens) {
  VisionTower t =
      read_tower(v, {"hidden_size"}, 768, {"num_hidden_layers"}, 12, {"num_attention_heads"}, 12);
  const std::int64_t side =
      bounded(v, {"image_size"}, 224, 65536) / bounded(v, {"patch_size"}, 16, 4096);
  t.patches = side * side;
  if (t.patches < tokens || t.patches % tokens != 0) {
    v.fail("image_size",
           fmt::format("{} patches per image cannot be pooled to {} tokens", t.patches, tokens));
  }
  t.merge = t.patches / tokens;
  t.patch_width = read_patch_width(v, 16, 1);
  t.patch_bias = true;
  t.position_rows = t.patches;
  t.mlp.ffn = v.size_or({"intermediate_size"}, 3072);
  t.mlp.act = read_activation(v, {"hidden_act"}, "gelu_pytorch_tanh");
  t.final_norm = NormKind::kLayer;
  t.connector = Connector::kPool;
  t.prefix = "vision_tower";
  t.patch = "embeddings.patch_embedding";
  t.positions = "embeddings.position_embedding";
  t.blocks = "encoder.layers";
  t.attention_norm = "layer_norm1";
  t.mlp_norm = "layer_norm2";
  t.attn = {
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "", ""};
  t.merger = "multi_modal_projector";
  t.merger_norm = "mm_soft_emb_norm";
  t.merger_out = "mm_input_projection";
  return t;
}

VisionTower read_kimi_vision(const Config& v) {
  VisionTower t = read_tower(v, kHiddenKeys, 1152, kDepthKeys, 27, kHeadKeys, 16);
  t.patch_width = read_patch_width(v, 14, 1);
  t.patch_bias = true;
  t.patches = usual_patches(t.merge);
  t.position_rows = bounded(v, {"init_pos_emb_height", "pos_emb_height"}, 64, 65536) *
                    bounded(v, {"init_pos_emb_width", "pos_emb_width"}, 64, 65536);
  t.attention.rotary_dim = t.attention.head_dim;
  t.mlp.ffn = v.size_or(kFfnKeys, 4304);
  t.mlp.act = "gelu_tanh";
  t.final_norm = NormKind::kLayer;
  t.prefix = "vision_tower";
  t.final_norm_name = "final_layernorm";
  t.merger = "mm_projector";
  t.merger_norm = "pre_norm";
  t.merger_in = "in_proj";
  t.merger_out = "out_proj";
  return t;
}

VisionTower read_llama4_vision(const Config& v) {
  VisionTower t =
      read_tower(v, {"hidden_size"}, 768, {"num_hidden_layers"}, 34, {"num_attention_heads"}, 16);
  const std::int64_t side =
      bounded(v, {"image_size"}, 448, 65536) / bounded(v, {"patch_size"}, 14, 4096);
  const double ratio = v.number_or({"pixel_shuffle_ratio"}, 0.5);
  if (ratio != 0.5) v.fail("pixel_shuffle_ratio", "only a pixel_shuffle_ratio of 0.5 is supported");
  if (side < 2 || side % 2 != 0) {
    v.fail("image_size", fmt::format("{} x {} patches cannot be merged by 2 x 2", side, side));
  }
  t.patches = side * side;
  t.patch_width = read_patch_width(v, 14, 1);
  t.class_token = true;
  t.position_rows = t.patches + 1;
  t.attention.rotary_dim = t.attention.head_dim - t.attention.head_dim % 2;
  t.mlp.ffn = v.size_or({"intermediate_size"}, 5632);
  t.mlp.act = read_activation(v, {"hidden_act"}, "gelu");
  t.pre_norm = t.final_norm = NormKind::kLayer;
  t.connector = Connector::kShuffle;
  t.merger_width = v.size_or({"projector_input_dim"}, 4096);
  t.prefix = "vision_model";
  t.patch = "patch_embedding.linear";
  t.positions = "positional_embedding_vlm";
  t.blocks = "model.layers";
  t.attention_norm = "input_layernorm";
  t.mlp_norm = "post_attention_layernorm";
  t.attn = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "", ""};
  t.final_norm_name = "layernorm_post";
  t.merger = "vision_adapter.mlp";
  t.merger_in = "fc1";
  t.merger_out = "fc2";
  return t;
}

double estimate_vision_parameters(const Config& v) {
  if (!v.has_any(kHiddenKeys) || !v.has_any(kDepthKeys)) return 0;
  const auto h = static_cast<double>(v.size(kHiddenKeys));
  const auto depth = static_cast<double>(v.size(kDepthKeys));
  const auto ffn = static_cast<double>(v.size_or(kFfnKeys, 1));
  return depth * (4 * h * h + 2 * h * (ffn > 1 ? ffn : 4 * h));
}

}  // namespace meshwright::hf
