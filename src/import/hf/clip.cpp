#include <fmt/format.h>

#include "import/hf/families.h"
#include "import/hf/patches.h"
#include "import/hf/sizes.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// CLIP (Radford et al. 2021, arXiv 2103.00020): a text and an image tower, projections to one
// space, and a contrastive loss over the whole batch: every text against every image and the
// reverse.

struct Tower {
  std::int64_t hidden, layers, heads, ffn;
  std::string act;
  double attention_dropout;
};

Tower read_tower(const Config& c, std::int64_t hidden, std::int64_t heads, std::int64_t ffn) {
  Tower t;
  t.hidden = c.size_or({"hidden_size"}, hidden);
  t.layers = layer_count(c, {"num_hidden_layers"}, 12);
  t.heads = c.size_or({"num_attention_heads"}, heads);
  head_dim_of(c, t.hidden, t.heads, "num_attention_heads");
  t.ffn = c.size_or({"intermediate_size"}, ffn);
  t.act = read_activation(c, {"hidden_act"}, "quick_gelu");
  t.attention_dropout = c.number_or({"attention_dropout"}, 0);
  return t;
}

struct TextTower {
  Tower tower;
  std::int64_t vocab, positions;
};

TextTower read_text(const Config& c) {
  return {read_tower(c, 512, 8, 2048), c.size_or({"vocab_size"}, 49408),
          c.size_or({"max_position_embeddings"}, 77)};
}

struct ImageTower {
  Tower tower;
  PatchGrid grid;
};

ImageTower read_image(const Config& c) {
  return {read_tower(c, 768, 12, 3072), read_patch_grid(c, 224, 32)};
}

ValueId layers(GraphBuilder& b, const Tower& t, bool causal, ValueId x,
               const ImportOptions& options) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = t.heads;
  spec.head_dim = t.hidden / t.heads;
  spec.q_bias = spec.k_bias = spec.v_bias = spec.o_bias = true;
  spec.causal = causal;
  spec.dropout = t.attention_dropout;
  const MlpSpec mlp{.ffn = t.ffn, .act = t.act, .up_bias = true, .down_bias = true};
  for (std::int64_t i = 0; i < t.layers; ++i) {
    const auto scope = b.scope(fmt::format("encoder.layers.{}", i));
    ValueId y = attention_block(
        b, {b.layer_norm("layer_norm1", x)}, spec,
        {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"},
        options);
    x = b.op("add", "self_attn.add", {x, y});
    y = mlp_block(b, b.layer_norm("layer_norm2", x), mlp, {"", "mlp.fc1", "mlp.fc2"});
    x = b.op("add", "mlp.add", {x, y});
  }
  return x;
}

// -> the token that stands for the text, [batch, hidden]. The library takes the position of the
// end-of-text token; here it is the last one.
ValueId text_model(GraphBuilder& b, const TextTower& text, TokenShape shape,
                   const ImportOptions& options) {
  const Dim hidden{"hidden", text.tower.hidden, 1};
  const auto scope = b.scope("text_model");
  ValueId x;
  {
    const auto inner = b.scope("embeddings");
    const ValueId ids =
        b.input("input_ids", {DType::kI64, {{"batch", shape.batch, 1}, {"seq", shape.seq, 1}}});
    const ValueId words = b.parameter("token_embedding.weight", {{"vocab", text.vocab, 1}, hidden});
    const ValueId positions = b.buffer("position_ids", {DType::kI64, {{"seq", shape.seq, 1}}});
    const ValueId rows =
        b.parameter("position_embedding.weight", {{"positions", text.positions, 1}, hidden});
    x = b.op("embedding", "token_embedding", {ids, words});
    x = b.op("add", "add", {x, b.op("embedding", "position_embedding", {positions, rows})});
  }
  x = b.layer_norm("final_layer_norm", layers(b, text.tower, /*causal=*/true, x, options));
  return one_token(b, "end_of_text", x, shape.seq - 1);
}

// -> the class token, [batch, hidden].
ValueId vision_model(GraphBuilder& b, const ImageTower& image, std::int64_t batch,
                     const ImportOptions& options) {
  const auto scope = b.scope("vision_model");
  ValueId x;
  {
    const auto inner = b.scope("embeddings");
    x = embed_patches(b, "patch_embedding", image.grid, batch, image.tower.hidden, false);
    x = prepend_tokens(b, {"class_embedding"}, flatten_patches(b, "flatten", x));
    x = add_patch_positions(b, "position_embedding.weight", x);
  }
  x = b.layer_norm("pre_layrnorm", x);
  x = layers(b, image.tower, /*causal=*/false, x, options);
  return b.layer_norm("post_layernorm", one_token(b, "class_token", x, 0));
}

// The embeddings of the whole batch as columns [projection, keys]: another name than "batch", since
// each of them meets every row and must be gathered where the batch is split.
ValueId columns(GraphBuilder& b, std::string_view name, ValueId rows) {
  const ValueId all =
      b.op("reshape", fmt::format("{}.all", name), {rows},
           {{"pattern", std::string("b p -> b p")}, {"names", std::string("b=keys")}});
  return b.op("transpose", fmt::format("{}.columns", name), {all},
              {{"perm", std::vector<std::int64_t>{1, 0}}});
}

void contrastive_loss(GraphBuilder& b, ValueId text, ValueId image) {
  text = b.op("rms_norm", "text_embeds", {text});
  image = b.op("rms_norm", "image_embeds", {image});
  const ValueId scale = b.parameter("logit_scale", {{"one", 1, 1}});
  const ValueId labels = b.input("labels", {DType::kI64, {b.type(text).dims[0]}});
  const auto direction = [&](std::string_view name, ValueId rows, ValueId others) {
    const auto scope = b.scope(name);
    ValueId logits = b.op("matmul", "product", {rows, columns(b, "others", others)});
    logits = b.op("mul", "scaled", {logits, scale});
    return b.op("cross_entropy", "loss", {logits, labels});
  };
  const ValueId a = direction("logits_per_text", text, image);
  const ValueId c = direction("logits_per_image", image, text);
  b.op("scale", "loss", {b.op("add", "loss_sum", {a, c})}, {{"factor", 0.5}});
}

// Older files keep a tower under "text_config_dict".
Config part(const Config& config, std::string_view key, std::string_view old_key) {
  if (!config.has(key) && config.has(old_key)) return config.nested(old_key);
  return config.nested(key);
}

Model build(const Config& config, const ImportOptions& options) {
  const Config text_config = part(config, "text_config", "text_config_dict");
  const TextTower text = read_text(text_config);
  const ImageTower image = read_image(part(config, "vision_config", "vision_config_dict"));
  const std::int64_t width = config.size_or({"projection_dim"}, 512);
  const TokenShape shape =
      learned_token_shape(text_config, options, text.positions, {"max_position_embeddings"});
  const std::string task = task_of(config, "Model");
  Model model{.family = "clip", .global_batch = shape.batch, .seq = shape.seq};
  GraphBuilder b("clip", options.dtype);
  const ValueId i = vision_model(b, image, shape.batch, options);
  const ValueId image_row = b.linear("visual_projection", i, {"projection", width, 1}, false);
  const ValueId t = text_model(b, text, shape, options);
  const ValueId text_row = b.linear("text_projection", t, {"projection", width, 1}, false);
  contrastive_loss(b, text_row, image_row);
  if (task != "Model") note_unknown_task(model, "CLIP", task);
  model.graph = b.finish();
  return model;
}

bool projects(const Config& config) { return task_of(config, "Model") == "ModelWithProjection"; }

Model build_text(const Config& config, const ImportOptions& options) {
  const TextTower text = read_text(config);
  const TokenShape shape =
      learned_token_shape(config, options, text.positions, {"max_position_embeddings"});
  Model model{.family = "clip_text_model", .global_batch = shape.batch, .seq = shape.seq};
  GraphBuilder b("clip_text_model", options.dtype);
  const ValueId x = text_model(b, text, shape, options);
  if (projects(config)) {
    b.linear("text_projection", x, {"projection", config.size_or({"projection_dim"}, 512), 1},
             false);
  }
  model.graph = b.finish();
  return model;
}

Model build_vision(const Config& config, const ImportOptions& options) {
  const ImageTower image = read_image(config);
  const std::int64_t batch = image_batch(config, options, image.grid);
  Model model{.family = "clip_vision_model", .global_batch = batch};
  model.seq = image.grid.rows() * image.grid.columns() + 1;
  GraphBuilder b("clip_vision_model", options.dtype);
  const ValueId x = vision_model(b, image, batch, options);
  if (projects(config)) {
    b.linear("visual_projection", x, {"projection", config.size_or({"projection_dim"}, 512), 1},
             false);
  }
  model.graph = b.finish();
  return model;
}

constexpr std::string_view kTypes[] = {"clip"};
constexpr std::string_view kStems[] = {"CLIP"};
constexpr std::string_view kTextTypes[] = {"clip_text_model"};
constexpr std::string_view kTextStems[] = {"CLIPText"};
constexpr std::string_view kVisionTypes[] = {"clip_vision_model"};
constexpr std::string_view kVisionStems[] = {"CLIPVision"};

}  // namespace

const Family kClip = {"clip", "CLIP: text and image towers with a contrastive loss", kTypes, kStems,
                      build};
const Family kClipText = {"clip_text_model", "CLIP's text tower", kTextTypes, kTextStems,
                          build_text};
const Family kClipVision = {"clip_vision_model", "CLIP's image tower", kVisionTypes, kVisionStems,
                            build_vision};

}  // namespace meshwright::hf
