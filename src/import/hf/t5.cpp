#include <fmt/format.h>

#include <cmath>

#include "import/hf/families.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// T5 (Raffel et al. 2020, arXiv 1910.10683): pre-norm with RMS norms, no biases, no attention
// scale; positions enter as a bias per head and bucket of distances, computed once per stack and
// shared by its layers (in every layer of UMT5). T5 1.1, Flan-T5 and mT5 gate the MLP and untie the
// output layer. Encoder and decoder sequences get the same length.

struct T5 {
  std::int64_t hidden, heads, head_dim, ffn, vocab, buckets, max_distance;
  MlpSpec mlp;
  bool tied;
  bool bias_in_every_layer;
  double dropout;
};

// "relu", "gated-gelu": the activation, and whether it gates. GELU inside a gate is the tanh form.
MlpSpec mlp_of(const Config& config, std::int64_t ffn, std::string_view fallback) {
  constexpr std::string_view kKey = "feed_forward_proj";
  constexpr std::string_view kGated = "gated-";
  std::string act = config.text_or({kKey}, fallback);
  MlpSpec mlp{.ffn = ffn};
  mlp.gated = act.starts_with(kGated);
  if (mlp.gated) act.erase(0, kGated.size());
  if (mlp.gated && act == "gelu") act = "gelu_new";
  const std::string_view kind = activation_kind(act);
  if (kind.empty()) {
    config.fail(kKey, fmt::format("activation '{}' is not supported", act),
                "known: relu, gelu, silu, and each as gated-...");
  }
  mlp.act = std::string(kind);
  return mlp;
}

T5 read(const Config& config) {
  const std::string type = config.text_or({"model_type"}, "");
  const std::vector<std::string> classes = config.texts_or_empty("architectures");
  const bool umt5 = type == "umt5" || (!classes.empty() && classes[0].starts_with("UMT5"));
  const bool mt5 = umt5 || type == "mt5" || (!classes.empty() && classes[0].starts_with("MT5"));
  T5 t;
  t.hidden = config.core_size_or({"d_model", "hidden_size"}, 512);
  t.heads = config.core_size_or({"num_heads", "num_attention_heads"}, mt5 ? 6 : 8);
  t.head_dim = config.size_or({"d_kv"}, 64);
  t.ffn = config.core_size_or({"d_ff"}, mt5 ? 1024 : 2048);
  t.vocab = config.core_size_or({"vocab_size"}, mt5 ? 250112 : 32128);
  t.buckets = config.size_or({"relative_attention_num_buckets"}, 32);
  t.max_distance = config.size_or({"relative_attention_max_distance"}, 128);
  t.mlp = mlp_of(config, t.ffn, mt5 ? "gated-gelu" : "relu");
  // mT5's class unties unless told otherwise; UMT5 and T5 tie.
  t.tied = config.flag_or({"tie_word_embeddings"}, !mt5 || umt5);
  t.bias_in_every_layer = umt5;
  t.dropout = config.number_or({"dropout_rate"}, 0.1);
  return t;
}

class Writer {
 public:
  Writer(const T5& t5, TokenShape shape, const ImportOptions& options)
      : t5_(t5), shape_(shape), options_(options), b_("t5", options.dtype) {}

  GraphBuilder& builder() { return b_; }
  ValueId shared() { return shared_; }

  void share_embedding() {
    shared_ = b_.parameter("shared.weight", {{"vocab", t5_.vocab, 1}, {"hidden", t5_.hidden, 1}});
  }

  ValueId embed(std::string_view stack, std::string_view ids, std::string_view tokens) {
    const ValueId input = b_.input(
        ids, {DType::kI64, {{"batch", shape_.batch, 1}, {std::string(tokens), shape_.seq, 1}}});
    const auto scope = b_.scope(stack);
    return drop("dropout", b_.op("embedding", "embed_tokens", {input, shared_}));
  }

  /// `memory` is the encoder's result, or invalid where there is no cross-attention.
  ValueId stack(std::string_view name, std::int64_t layers, ValueId x, ValueId memory,
                bool causal) {
    const auto scope = b_.scope(name);
    ValueId bias;
    if (!t5_.bias_in_every_layer) bias = relative_bias("relative_attention_bias", x, causal);
    for (std::int64_t i = 0; i < layers; ++i) {
      const auto block = b_.scope(fmt::format("block.{}", i));
      x = layer(x, memory, bias, causal);
    }
    x = norm(b_, NormKind::kRms, "final_layer_norm", x);
    return drop("final_dropout", x);
  }

  ValueId drop(std::string_view name, ValueId x) {
    return dropout(b_, name, x, t5_.dropout, options_);
  }

 private:
  ValueId relative_bias(std::string_view name, ValueId x, bool causal) {
    const ValueId table = b_.parameter(fmt::format("{}.weight", name),
                                       {{"buckets", t5_.buckets, 1}, {"heads", t5_.heads, 1}});
    const Dim tokens = b_.type(x).dims[1];
    return b_.op("relative_bias", name, {table},
                 {{"query_length", tokens.size},
                  {"key_length", tokens.size},
                  {"query_dim", tokens.name},
                  {"causal", causal}});
  }

  ValueId attend(std::string_view name, ValueId x, ValueId memory, ValueId bias, bool causal) {
    AttentionSpec spec;
    spec.heads = spec.kv_heads = t5_.heads;
    spec.head_dim = t5_.head_dim;
    spec.causal = causal;
    spec.scale = 1;
    spec.dropout = t5_.dropout;
    const auto scope = b_.scope(name);
    return attention_block(b_, {x, memory, bias}, spec, {"q", "k", "v", "o"}, options_);
  }

  ValueId layer(ValueId x, ValueId memory, ValueId bias, bool causal) {
    int index = 0;
    {
      const auto scope = b_.scope(fmt::format("layer.{}", index++));
      const ValueId h = norm(b_, NormKind::kRms, "layer_norm", x);
      if (t5_.bias_in_every_layer) {
        bias = relative_bias("SelfAttention.relative_attention_bias", x, causal);
      }
      const ValueId y = attend("SelfAttention", h, ValueId(), bias, causal);
      x = b_.op("add", "add", {x, drop("dropout", y)});
    }
    if (memory.valid()) {
      const auto scope = b_.scope(fmt::format("layer.{}", index++));
      const ValueId h = norm(b_, NormKind::kRms, "layer_norm", x);
      const ValueId y = attend("EncDecAttention", h, memory, ValueId(), false);
      x = b_.op("add", "add", {x, drop("dropout", y)});
    }
    const auto scope = b_.scope(fmt::format("layer.{}", index));
    const ValueId h = norm(b_, NormKind::kRms, "layer_norm", x);
    ValueId y;
    {
      const auto inner = b_.scope("DenseReluDense");
      const MlpNames names =
          t5_.mlp.gated ? MlpNames{"wi_0", "wi_1", "wo"} : MlpNames{"", "wi", "wo"};
      y = mlp_block(b_, h, t5_.mlp, names);
    }
    return b_.op("add", "add", {x, drop("dropout", y)});
  }

  const T5& t5_;
  TokenShape shape_;
  const ImportOptions& options_;
  GraphBuilder b_;
  ValueId shared_;
};

void output_layer(Writer& w, const T5& t5, ValueId x) {
  GraphBuilder& b = w.builder();
  ValueId table = w.shared();
  if (t5.tied) {
    // The shared table is large for an output layer, so its input is scaled down.
    x = b.op("scale", "lm_head.scale", {x},
             {{"factor", 1 / std::sqrt(static_cast<double>(t5.hidden))}});
  } else {
    table = b.parameter("lm_head.weight", {{"vocab", t5.vocab, 1}, {"hidden", t5.hidden, 1}});
  }
  predict_tokens(b, "lm_head", x, table);
}

Model build(const Config& config, const ImportOptions& options) {
  const T5 t5 = read(config);
  const std::int64_t layers = layer_count(config, {"num_layers", "num_hidden_layers"}, 6);
  const std::int64_t decoder_layers = config.has("num_decoder_layers")
                                          ? layer_count(config, {"num_decoder_layers"}, layers)
                                          : layers;
  const TokenShape shape = token_shape(options, config.size_or({"n_positions"}, 512));
  const std::string task = task_of(config, "ForConditionalGeneration");
  const bool encoder_only = task == "EncoderModel" || task == "ForTokenClassification";

  Model model{.family = "t5", .global_batch = shape.batch, .seq = shape.seq};
  Writer w(t5, shape, options);
  GraphBuilder& b = w.builder();
  w.share_embedding();
  const std::string_view tokens = encoder_only ? "seq" : "src_seq";
  const ValueId memory = w.stack("encoder", layers, w.embed("encoder", "input_ids", tokens),
                                 ValueId(), /*causal=*/false);
  if (encoder_only) {
    if (task == "ForTokenClassification") {
      classify(b, "classifier", w.drop("dropout", memory), label_count(config));
    }
    model.graph = b.finish();
    return model;
  }
  const ValueId x =
      w.stack("decoder", decoder_layers, w.embed("decoder", "decoder_input_ids", "seq"), memory,
              /*causal=*/true);
  if (task == "ForConditionalGeneration" || task == "WithLMHeadModel") {
    output_layer(w, t5, x);
  } else if (task == "ForQuestionAnswering") {
    b.linear("qa_outputs", x, {"classes", label_count(config), 1}, true);
  } else if (task == "ForSequenceClassification") {
    ValueId y = one_token(b, "classification_head", x, shape.seq - 1);
    y = w.drop("classification_head.dropout", y);
    y = b.linear("classification_head.dense", y, {"hidden", t5.hidden, 1}, true);
    y = b.op("tanh", "classification_head.tanh", {y});
    y = w.drop("classification_head.dropout_out", y);
    classify(b, "classification_head.out_proj", y, label_count(config));
  } else if (task != "Model") {
    note_unknown_task(model, "T5", task);
  }
  model.graph = b.finish();
  return model;
}

// BigScience's decoder without an encoder: T5 blocks with causal self-attention only.
Model build_decoder_only(const Config& config, const ImportOptions& options) {
  const T5 t5 = read(config);
  const std::int64_t layers = layer_count(config, {"num_layers", "num_hidden_layers"}, 6);
  const TokenShape shape = token_shape(options, config.size_or({"n_positions"}, 2048));
  Model model{.family = "decoder_only_t5", .global_batch = shape.batch, .seq = shape.seq};
  Writer w(t5, shape, options);
  w.share_embedding();
  const ValueId x = w.stack("decoder", layers, w.embed("decoder", "input_ids", "seq"), ValueId(),
                            /*causal=*/true);
  output_layer(w, t5, x);
  model.graph = w.builder().finish();
  return model;
}

constexpr std::string_view kTypes[] = {"t5", "mt5", "umt5"};
constexpr std::string_view kStems[] = {"T5",        "MT5",        "UMT5",
                                       "T5Encoder", "MT5Encoder", "UMT5Encoder"};
constexpr std::string_view kDecoderOnlyTypes[] = {"decoder_only_t5"};
constexpr std::string_view kDecoderOnlyStems[] = {"DecoderOnlyT5"};

}  // namespace

const Family kT5 = {
    .name = "t5",
    .summary = "T5, T5 1.1, Flan-T5, mT5, UMT5: encoder-decoder with relative position biases",
    .model_types = kTypes,
    .architectures = kStems,
    .build = build,
};

const Family kDecoderOnlyT5 = {
    .name = "decoder_only_t5",
    .summary = "BigScience's decoder-only T5",
    .model_types = kDecoderOnlyTypes,
    .architectures = kDecoderOnlyStems,
    .build = build_decoder_only,
};

}  // namespace meshwright::hf
