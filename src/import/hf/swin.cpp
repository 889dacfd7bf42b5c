#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "import/hf/families.h"
#include "import/hf/patches.h"
#include "import/hf/sizes.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// Swin Transformer (Liu et al. 2021, arXiv 2103.14030): attention within square windows of a grid
// of patches, shifted by half a window in every second block; between stages 2 x 2 patches merge
// and the width doubles. Stages are named "stage_<s>" so that a block's number is the first number
// in its path. The mask that keeps the two sides of a shifted border apart is part of the attention
// operator and not a value of its own.

constexpr std::size_t kMaxStages = 8;
constexpr std::int64_t kMaxWindow = 4096;

struct Swin {
  std::int64_t width, window;
  std::vector<std::int64_t> depths, heads;
  double mlp_ratio, dropout, attention_dropout;
  bool qkv_bias, absolute_positions;
  std::string act;
  PatchGrid grid;
};

Swin read(const Config& config) {
  Swin s;
  s.width = config.core_size_or({"embed_dim"}, 96);
  s.window = config.size_or({"window_size"}, 7);
  if (s.window > kMaxWindow) {
    config.fail("window_size",
                fmt::format("window_size must be at most {}, but is {}", kMaxWindow, s.window));
  }
  s.depths = config.sizes_or_empty("depths");
  s.heads = config.sizes_or_empty("num_heads");
  if (!config.has("depths")) s.depths = {2, 2, 6, 2};
  if (!config.has("num_heads")) s.heads = {3, 6, 12, 24};
  if (s.depths.empty() || s.depths.size() > kMaxStages) {
    config.fail("depths", fmt::format("depths must list 1 to {} stages, but has {}", kMaxStages,
                                      s.depths.size()));
  }
  if (s.heads.size() != s.depths.size()) {
    config.fail("num_heads", fmt::format("num_heads lists {} stages, but depths lists {}",
                                         s.heads.size(), s.depths.size()));
  }
  std::int64_t width = s.width;
  for (std::size_t i = 0; i < s.depths.size(); ++i, width *= 2) {
    if (s.depths[i] < 1 || s.depths[i] > 1000) {
      config.fail("depths", fmt::format("a stage has 1 to 1000 blocks, not {}", s.depths[i]));
    }
    if (s.heads[i] < 1 || width % s.heads[i] != 0) {
      config.fail("num_heads", fmt::format("{} heads do not divide the width {} of stage {}",
                                           s.heads[i], width, i));
    }
  }
  s.mlp_ratio = config.number_or({"mlp_ratio"}, 4);
  if (!(s.mlp_ratio > 0 && s.mlp_ratio <= 1024)) {
    config.fail("mlp_ratio",
                fmt::format("mlp_ratio must be above 0 and at most 1024, but is {}", s.mlp_ratio));
  }
  s.dropout = config.number_or({"hidden_dropout_prob"}, 0);
  s.attention_dropout = config.number_or({"attention_probs_dropout_prob"}, 0);
  s.qkv_bias = config.flag_or({"qkv_bias"}, true);
  s.absolute_positions = config.flag_or({"use_absolute_embeddings"}, false);
  s.act = read_activation(config, {"hidden_act"}, "gelu");
  s.grid = read_patch_grid(config, 224, 4);
  return s;
}

ValueId reshape(GraphBuilder& b, std::string_view name, ValueId x, std::string pattern,
                std::string sizes, std::string names) {
  return b.op(
      "reshape", name, {x},
      {{"pattern", std::move(pattern)}, {"sizes", std::move(sizes)}, {"names", std::move(names)}});
}

ValueId permute(GraphBuilder& b, std::string_view name, ValueId x) {
  return b.op("transpose", name, {x}, {{"perm", std::vector<std::int64_t>{0, 1, 3, 2, 4, 5}}});
}

ValueId pad_to(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t dim,
               std::int64_t multiple) {
  const std::int64_t size = b.type(x).dims[dim].size;
  const std::int64_t extra = (multiple - size % multiple) % multiple;
  if (extra == 0) return x;
  return b.op("pad", name, {x}, {{"dim", dim}, {"after", extra}});
}

ValueId cut_to(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t dim,
               std::int64_t size) {
  if (b.type(x).dims[dim].size == size) return x;
  return b.op("slice", name, {x}, {{"dim", dim}, {"start", std::int64_t{0}}, {"length", size}});
}

ValueId roll(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t shift) {
  return b.op("roll", name, {x},
              {{"dims", std::vector<std::int64_t>{1, 2}},
               {"shifts", std::vector<std::int64_t>{shift, shift}}});
}

// x [batch, height, width, hidden] -> the same; attention of `heads` within windows.
ValueId window_attention(GraphBuilder& b, const Swin& s, std::int64_t heads, bool shifted,
                         ValueId x, const ImportOptions& options) {
  const std::int64_t height = b.type(x).dims[1].size;
  const std::int64_t width = b.type(x).dims[2].size;
  // A window larger than the grid shrinks to it and has nowhere to shift.
  const std::int64_t w = std::min({s.window, height, width});
  const std::int64_t shift = shifted && w < std::min(height, width) ? w / 2 : 0;
  x = pad_to(b, "pad_height", x, 1, w);
  x = pad_to(b, "pad_width", x, 2, w);
  const std::int64_t rows = b.type(x).dims[1].size / w;
  const std::int64_t columns = b.type(x).dims[2].size / w;
  if (shift > 0) x = roll(b, "shift", x, -shift);
  const std::string window_sizes = fmt::format("p={}, q={}", w, w);
  x = reshape(b, "partition.split", x, "b (y p) (x q) c -> b y p x q c", window_sizes,
              "p=window_y, q=window_x");
  x = permute(b, "partition.permute", x);
  x = reshape(b, "partition.merge", x, "b y x p q c -> (b y x) (p q) c", "", "p=window");

  AttentionSpec spec;
  spec.heads = spec.kv_heads = heads;
  spec.head_dim = b.type(x).dims[2].size / heads;
  spec.q_bias = spec.k_bias = spec.v_bias = s.qkv_bias;
  spec.o_bias = true;
  spec.causal = false;
  spec.dropout = s.attention_dropout;
  // Offsets from -(w - 1) to w - 1 along both axes.
  const std::int64_t buckets = (2 * w - 1) * (2 * w - 1);
  const ValueId table = b.parameter("attention.self.relative_position_bias_table",
                                    {{"buckets", buckets, 1}, {"heads", heads, 1}});
  const ValueId bias = b.op("relative_bias", "attention.self.relative_position_bias", {table},
                            {{"query_length", w * w},
                             {"key_length", w * w},
                             {"query_dim", std::string("window")},
                             {"causal", false}});
  x = attention_block(b, {x, ValueId(), bias}, spec,
                      {"attention.self.query", "attention.self.key", "attention.self.value",
                       "attention.output.dense"},
                      options);

  x = reshape(b, "reverse.split", x, "(b y x) (p q) c -> b y x p q c",
              fmt::format("y={}, x={}, q={}", rows, columns, w),
              "y=height, x=width, p=window_y, q=window_x");
  x = permute(b, "reverse.permute", x);
  x = reshape(b, "reverse.merge", x, "b y p x q c -> b (y p) (x q) c", "", "");
  if (shift > 0) x = roll(b, "unshift", x, shift);
  return cut_to(b, "cut_width", cut_to(b, "cut_height", x, 1, height), 2, width);
}

ValueId block(GraphBuilder& b, const Swin& s, std::int64_t heads, bool shifted, ValueId x,
              const ImportOptions& options) {
  const double p = s.dropout;
  ValueId y = window_attention(b, s, heads, shifted, b.layer_norm("layernorm_before", x), options);
  x = b.op("add", "attention.add", {x, dropout(b, "attention.dropout", y, p, options)});
  const auto hidden = static_cast<double>(b.type(x).dims[3].size);
  const auto ffn = static_cast<std::int64_t>(s.mlp_ratio * hidden);
  const MlpSpec mlp{
      .ffn = std::max<std::int64_t>(ffn, 1), .act = s.act, .up_bias = true, .down_bias = true};
  y = mlp_block(b, b.layer_norm("layernorm_after", x), mlp,
                {"", "intermediate.dense", "output.dense"});
  return b.op("add", "output.add", {x, dropout(b, "output.dropout", y, p, options)});
}

// 2 x 2 neighbours side by side, normalized, projected to twice the width.
ValueId merge_patches(GraphBuilder& b, ValueId x) {
  const std::int64_t width = b.type(x).dims[3].size;
  const auto scope = b.scope("downsample");
  x = pad_to(b, "pad_height", x, 1, 2);
  x = pad_to(b, "pad_width", x, 2, 2);
  x = reshape(b, "split", x, "b (y p) (x q) c -> b y p x q c", "p=2, q=2",
              "p=window_y, q=window_x");
  x = permute(b, "permute", x);
  x = reshape(b, "merge", x, "b y x p q c -> b y x (p q c)", "", "p=hidden");
  return b.linear("reduction", b.layer_norm("norm", x), {"hidden", 2 * width, 1}, false);
}

// -> [batch, patches, hidden].
ValueId encoder(GraphBuilder& b, const Swin& s, std::int64_t batch, const ImportOptions& options) {
  ValueId x;
  {
    const auto scope = b.scope("embeddings");
    x = embed_patches(b, "patch_embeddings.projection", s.grid, batch, s.width, true);
    x = b.layer_norm("norm", x);
    if (s.absolute_positions) {
      const std::vector<Dim> dims = b.type(x).dims;
      const ValueId rows = b.parameter("position_embeddings", {dims[1], dims[2], dims[3]});
      x = b.op("add", "add_positions", {x, rows});
    }
    x = dropout(b, "dropout", x, s.dropout, options);
  }
  for (std::size_t stage = 0; stage < s.depths.size(); ++stage) {
    const auto stage_scope = b.scope(fmt::format("encoder.stage_{}", stage));
    for (std::int64_t i = 0; i < s.depths[stage]; ++i) {
      const auto scope = b.scope(fmt::format("blocks.{}", i));
      x = block(b, s, s.heads[stage], i % 2 == 1, x, options);
    }
    if (stage + 1 < s.depths.size()) x = merge_patches(b, x);
  }
  return b.layer_norm("layernorm", flatten_patches(b, "flatten", x));
}

Model build(const Config& config, const ImportOptions& options) {
  const Swin s = read(config);
  const std::int64_t batch = image_batch(config, options, s.grid);
  const std::string task = task_of(config, "Model");
  Model model{.family = "swin", .global_batch = batch};
  model.seq = s.grid.rows() * s.grid.columns();
  GraphBuilder b("swin", options.dtype);
  const auto pooled = [&] {
    return b.op("mean_pool", "pooler", {encoder(b, s, batch, options)}, {{"dim", std::int64_t{1}}});
  };
  if (task == "Model") {
    pooled();
  } else {
    ValueId x;
    {
      const auto scope = b.scope("swin");
      x = pooled();
    }
    if (task == "ForImageClassification") {
      classify(b, "classifier", x, label_count(config));
    } else {
      note_unknown_task(model, "Swin", task);
    }
  }
  model.graph = b.finish();
  return model;
}

constexpr std::string_view kTypes[] = {"swin"};
constexpr std::string_view kStems[] = {"Swin"};

}  // namespace

const Family kSwin = {"swin", "Swin Transformer: windowed attention in stages", kTypes, kStems,
                      build};

}  // namespace meshwright::hf
