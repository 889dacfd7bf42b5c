#include <fmt/format.h>

#include "import/hf/families.h"
#include "import/hf/patches.h"
#include "import/hf/sizes.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929) and DeiT (Touvron et al. 2021,
// arXiv 2012.12877), which adds a distillation token.

struct Vit {
  std::int64_t hidden, layers, heads, ffn;
  bool qkv_bias;
  std::string act;
  double dropout, attention_dropout;
  PatchGrid grid;
};

Vit read(const Config& config) {
  Vit v;
  v.hidden = config.core_size_or({"hidden_size"}, 768);
  v.layers = layer_count(config, {"num_hidden_layers"}, 12);
  v.heads = config.core_size_or({"num_attention_heads"}, 12);
  head_dim_of(config, v.hidden, v.heads, "num_attention_heads");
  v.ffn = config.core_size_or({"intermediate_size"}, 3072);
  v.qkv_bias = config.flag_or({"qkv_bias"}, true);
  v.act = read_activation(config, {"hidden_act"}, "gelu");
  v.dropout = config.number_or({"hidden_dropout_prob"}, 0);
  v.attention_dropout = config.number_or({"attention_probs_dropout_prob"}, 0);
  v.grid = read_patch_grid(config, 224, 16);
  return v;
}

ValueId layer(GraphBuilder& b, const Vit& v, ValueId x, const ImportOptions& options) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = v.heads;
  spec.head_dim = v.hidden / v.heads;
  spec.q_bias = spec.k_bias = spec.v_bias = v.qkv_bias;
  spec.o_bias = true;
  spec.causal = false;
  spec.dropout = v.attention_dropout;
  const AttentionNames names{"attention.attention.query", "attention.attention.key",
                             "attention.attention.value", "attention.output.dense"};
  ValueId y = attention_block(b, {b.layer_norm("layernorm_before", x)}, spec, names, options);
  x = b.op("add", "attention.add", {x, dropout(b, "attention.dropout", y, v.dropout, options)});
  const MlpSpec mlp{.ffn = v.ffn, .act = v.act, .up_bias = true, .down_bias = true};
  y = mlp_block(b, b.layer_norm("layernorm_after", x), mlp,
                {"", "intermediate.dense", "output.dense"});
  return b.op("add", "output.add", {x, dropout(b, "output.dropout", y, v.dropout, options)});
}

ValueId encoder(GraphBuilder& b, const Vit& v, std::int64_t batch, bool distilled,
                const ImportOptions& options) {
  ValueId x;
  {
    const auto scope = b.scope("embeddings");
    x = embed_patches(b, "patch_embeddings.projection", v.grid, batch, v.hidden, true);
    x = flatten_patches(b, "patch_embeddings.flatten", x);
    std::vector<std::string_view> tokens = {"cls_token"};
    if (distilled) tokens.push_back("distillation_token");
    x = add_patch_positions(b, "position_embeddings", prepend_tokens(b, tokens, x));
    x = dropout(b, "dropout", x, v.dropout, options);
  }
  for (std::int64_t i = 0; i < v.layers; ++i) {
    const auto scope = b.scope(fmt::format("encoder.layer.{}", i));
    x = layer(b, v, x, options);
  }
  return b.layer_norm("layernorm", x);
}

Model build_with(const Config& config, const ImportOptions& options, bool distilled) {
  const Vit v = read(config);
  const std::int64_t batch = image_batch(config, options, v.grid);
  const std::string_view family = distilled ? "deit" : "vit";
  const std::string task = task_of(config, "Model");
  Model model{.family = std::string(family), .global_batch = batch};
  model.seq = v.grid.rows() * v.grid.columns() + (distilled ? 2 : 1);
  GraphBuilder b{std::string(family), options.dtype};
  if (task == "Model") {
    ValueId x = encoder(b, v, batch, distilled, options);
    x = b.linear("pooler.dense", one_token(b, "pooler.first_token", x, 0), {"hidden", v.hidden, 1},
                 true);
    b.op("tanh", "pooler.activation", {x});
    model.graph = b.finish();
    return model;
  }
  ValueId x;
  {
    const auto scope = b.scope(family);
    x = encoder(b, v, batch, distilled, options);
  }
  const std::int64_t labels = label_count(config);
  if (task == "ForImageClassification") {
    classify(b, "classifier", one_token(b, "class_token", x, 0), labels);
  } else if (task == "ForImageClassificationWithTeacher") {
    const Dim classes{"classes", labels, 1};
    const ValueId own =
        b.linear("cls_classifier", one_token(b, "class_token", x, 0), classes, true);
    const ValueId teacher = b.linear("distillation_classifier",
                                     one_token(b, "distillation_token", x, 1), classes, true);
    b.op("scale", "average", {b.op("add", "sum", {own, teacher})}, {{"factor", 0.5}});
  } else {
    note_unknown_task(model, family, task);
  }
  model.graph = b.finish();
  return model;
}

Model build_vit(const Config& config, const ImportOptions& options) {
  return build_with(config, options, /*distilled=*/false);
}
Model build_deit(const Config& config, const ImportOptions& options) {
  return build_with(config, options, /*distilled=*/true);
}

constexpr std::string_view kVitTypes[] = {"vit"};
constexpr std::string_view kVitStems[] = {"ViT"};
constexpr std::string_view kDeitTypes[] = {"deit"};
constexpr std::string_view kDeitStems[] = {"DeiT"};

}  // namespace

const Family kVit = {"vit", "Vision Transformer", kVitTypes, kVitStems, build_vit};
const Family kDeit = {"deit", "DeiT: Vision Transformer with a distillation token", kDeitTypes,
                      kDeitStems, build_deit};

}  // namespace meshwright::hf
