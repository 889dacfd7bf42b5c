#include "import/hf/decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright::hf {
namespace {

constexpr std::string_view kPositionKeys[] = {"n_positions", "n_ctx", "max_position_embeddings",
                                              "max_seq_len"};

class Writer {
 public:
  Writer(const Decoder& decoder, TokenShape shape, const ImportOptions& options)
      : d_(decoder), options_(options), shape_(shape), b_(decoder.family, options.dtype) {}

  Graph write() {
    const Dim batch{"batch", shape_.batch, 1};
    const Dim seq{"seq", shape_.seq, 1};
    const std::int64_t images = d_.vision ? d_.vision->tokens() : 0;
    ids_ = b_.input("input_ids", {DType::kI64, {batch, {"seq", shape_.seq - images, 1}}});
    labels_ = b_.input("labels", {DType::kI64, {batch, seq}});
    const std::int64_t width = d_.embed_width > 0 ? d_.embed_width : d_.hidden;
    embedding_ = b_.parameter(d_.names.embed + ".weight", {vocab(), {"hidden", width, 1}});
    VisionFeatures image;
    if (d_.vision) {
      image = build_vision(b_, *d_.vision, shape_.batch, d_.hidden, options_);
    }
    ValueId x = embed();
    if (d_.vision) {
      x = b_.op("concat", d_.names.embed + ".images", {x, image.tokens},
                {{"dim", std::int64_t{1}}});
    }
    for (std::size_t i = 0; i < d_.layers.size(); ++i) {
      x = layer(i, variant(i), x);
      if (i < image.deepstack.size()) x = add_deepstack(i, x, image.deepstack[i]);
    }
    head_ = d_.tied ? embedding_
                    : b_.parameter(d_.names.head + ".weight", {vocab(), {"hidden", width, 1}});
    if (options_.mtp) {
      ValueId h = x;
      for (int i = 0; i < d_.mtp_layers; ++i) h = predict_next(i, h);
    }
    if (d_.final_norm) x = norm(b_, d_.norm, d_.names.final_norm, x);
    if (d_.embed_width > 0) x = b_.linear("project_out", x, {"hidden", width, 1}, false);
    loss(d_.names.head, "loss", x);
    return b_.finish();
  }

 private:
  Dim vocab() const { return {"vocab", d_.vocab, 1}; }
  const LayerSpec& variant(std::size_t layer) const {
    return d_.variants[static_cast<std::size_t>(d_.layers[layer])];
  }

  ValueId embed() {
    ValueId x = b_.op("embedding", d_.names.embed, {ids_, embedding_});
    if (d_.embed_scale != 1) {
      x = b_.op("scale", d_.names.embed + ".scale", {x}, {{"factor", d_.embed_scale}});
    }
    if (d_.embed_width > 0) x = b_.linear("project_in", x, {"hidden", d_.hidden, 1}, false);
    if (d_.position_rows > 0) {
      const ValueId position = b_.buffer("position_ids", {DType::kI64, {{"seq", shape_.seq, 1}}});
      const ValueId table =
          b_.parameter(d_.names.positions + ".weight",
                       {{"positions", d_.position_rows, 1}, {"hidden", d_.hidden, 1}});
      const ValueId row = b_.op("embedding", d_.names.positions, {position, table});
      x = b_.op("add", d_.names.positions + ".add", {x, row});
    }
    x = norm(b_, d_.embed_norm, d_.names.embed_norm, x);
    return dropout(b_, d_.names.embed + ".dropout", x, d_.embed_dropout, options_);
  }

  ValueId attention(const LayerSpec& spec, ValueId x) {
    ValueId y;
    {
      const auto scope = b_.scope(d_.names.attention);
      y = attention_block(b_, {x}, *spec.attention, d_.names.attn, options_);
      y = dropout(b_, "dropout", y, d_.hidden_dropout, options_);
    }
    return finish(spec, d_.names.attention, d_.names.attention_out_norm, y);
  }

  ValueId network(const LayerSpec& spec, ValueId x) {
    ValueId y;
    if (spec.mlp) {
      const auto scope = b_.scope(d_.names.mlp);
      y = mlp_block(b_, x, *spec.mlp, d_.names.dense);
      y = dropout(b_, "dropout", y, d_.hidden_dropout, options_);
    }
    if (spec.moe) {
      const auto scope = b_.scope(d_.names.moe);
      const ValueId routed = moe_block(b_, x, *spec.moe, d_.names.sparse);
      y = y.valid() ? b_.op("add", "sum", {y, routed}) : routed;
    }
    return finish(spec, d_.names.mlp, d_.names.mlp_out_norm, y);
  }

  // What follows a sublayer before its residual.
  ValueId finish(const LayerSpec& spec, const std::string& name, const std::string& norm_name,
                 ValueId y) {
    if (spec.out_norm) y = norm(b_, d_.norm, norm_name, y);
    if (spec.residual_scale == 1) return y;
    return b_.op("scale", name + ".scale", {y}, {{"factor", spec.residual_scale}});
  }

  ValueId layer(std::size_t index, const LayerSpec& spec, ValueId x) {
    const auto scope = b_.scope(fmt::format("{}.{}", d_.names.layers, index));
    return layer_body(spec, x);
  }

  ValueId layer_body(const LayerSpec& spec, ValueId x) {
    const bool has_network = spec.mlp || spec.moe;
    if (spec.parallel && spec.attention && has_network) {
      const ValueId n = norm(b_, d_.norm, d_.names.attention_norm, x);
      const ValueId a = attention(spec, n);
      const ValueId m =
          network(spec, spec.shared_norm ? n : norm(b_, d_.norm, d_.names.mlp_norm, x));
      return b_.op("add", "residual", {x, b_.op("add", "sum", {a, m})});
    }
    if (spec.attention) {
      const ValueId n = spec.pre_norm ? norm(b_, d_.norm, d_.names.attention_norm, x) : x;
      x = b_.op("add", d_.names.attention + ".residual", {x, attention(spec, n)});
      if (spec.post_norm) x = norm(b_, d_.norm, d_.names.attention_norm, x);
    }
    if (has_network) {
      const ValueId n = spec.pre_norm ? norm(b_, d_.norm, d_.names.mlp_norm, x) : x;
      x = b_.op("add", d_.names.mlp + ".residual", {x, network(spec, n)});
      if (spec.post_norm) x = norm(b_, d_.norm, d_.names.mlp_norm, x);
    }
    return x;
  }

  // Adds an intermediate result of the image encoder at the image's positions.
  ValueId add_deepstack(std::size_t index, ValueId x, ValueId feature) {
    const auto scope = b_.scope(fmt::format("{}.{}", d_.names.layers, index));
    const ValueId wide =
        b_.op("pad", "deepstack.pad", {feature},
              {{"dim", std::int64_t{1}}, {"before", shape_.seq - d_.vision->tokens()}});
    return b_.op("add", "deepstack.residual", {x, wide});
  }

  // DeepSeek-V3 (arXiv 2412.19437) section 2.2: the next token's embedding joins the hidden state,
  // one more layer follows; embedding and head are the main model's.
  ValueId predict_next(int module, ValueId h) {
    const std::size_t index = d_.layers.size() + static_cast<std::size_t>(module);
    const auto scope = b_.scope(fmt::format("{}.{}", d_.names.layers, index));
    const ValueId token = b_.op("embedding", "embed_tokens", {ids_, embedding_});
    const ValueId pair =
        b_.op("concat", "eh_concat", {b_.rms_norm("enorm", token), b_.rms_norm("hnorm", h)},
              {{"dim", std::int64_t{2}}});
    h = b_.linear("eh_proj", pair, {"hidden", d_.hidden, 1}, false);
    h = layer_body(variant(d_.layers.size() - 1), h);
    loss("shared_head.head", "loss", norm(b_, d_.norm, "shared_head.norm", h));
    return h;
  }

  void loss(const std::string& head, const std::string& name, ValueId x) {
    std::vector<ValueId> operands = {x, head_};
    if (d_.head_bias) operands.push_back(b_.parameter(head + ".bias", {vocab()}));
    ValueId logits = b_.op("linear", head, std::move(operands));
    if (d_.logit_scale != 1) {
      logits = b_.op("scale", head + ".scale", {logits}, {{"factor", d_.logit_scale}});
    }
    if (d_.logit_softcap > 0) {
      logits = b_.op("scale", head + ".cap_in", {logits}, {{"factor", 1 / d_.logit_softcap}});
      logits = b_.op("tanh", head + ".cap", {logits});
      logits = b_.op("scale", head + ".cap_out", {logits}, {{"factor", d_.logit_softcap}});
    }
    b_.op("cross_entropy", name, {logits, labels_});
  }

  const Decoder& d_;
  const ImportOptions& options_;
  TokenShape shape_;
  GraphBuilder b_;
  ValueId ids_, labels_, embedding_, head_;
};

}  // namespace

void Decoder::append(const LayerSpec& layer) {
  const auto it = std::find(variants.begin(), variants.end(), layer);
  layers.push_back(static_cast<int>(it - variants.begin()));
  if (it == variants.end()) variants.push_back(layer);
}

void Decoder::repeat(const LayerSpec& layer, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) append(layer);
}

namespace {

// A file of a classifier, a reward model or a bare decoder is planned as the language model.
void note_task(const Config& config, std::vector<std::string>& notes) {
  const std::vector<std::string> classes = config.texts_or_empty("architectures");
  if (classes.empty()) return;
  const std::string& name = classes.front();
  for (std::string_view end : {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"}) {
    if (name.ends_with(end)) return;
  }
  notes.push_back(
      fmt::format("'{}' is imported as a language model, with its output layer and loss", name));
}

}  // namespace

Model build_decoder(const Decoder& decoder, const Config& config, const ImportOptions& options) {
  const TokenShape shape =
      decoder.position_rows > 0
          ? learned_token_shape(config, options, decoder.max_positions, kPositionKeys)
          : token_shape(options, decoder.max_positions);
  if (decoder.vision && decoder.vision->tokens() >= shape.seq) {
    throw Error(fmt::format("an image takes {} tokens, which leaves no text in a sequence of {}",
                            decoder.vision->tokens(), shape.seq),
                config.where("vision_config"),
                fmt::format("at least --seq {}", decoder.vision->tokens() + 1));
  }
  Model model;
  model.graph = Writer(decoder, shape, options).write();
  model.family = decoder.family;
  model.global_batch = shape.batch;
  model.seq = shape.seq;
  model.notes = decoder.notes;
  note_task(config, model.notes);
  if (decoder.vision) {
    model.notes.push_back(
        fmt::format("one image of {} patches per sequence is assumed: {} of its {} tokens",
                    decoder.vision->patches, decoder.vision->tokens(), shape.seq));
  }
  if (decoder.mtp_layers > 0 && !options.mtp) {
    model.notes.push_back(fmt::format(
        "{} multi-token-prediction module{} left out (option mtp adds {})", decoder.mtp_layers,
        decoder.mtp_layers == 1 ? "" : "s", decoder.mtp_layers == 1 ? "it" : "them"));
  }
  return model;
}

}  // namespace meshwright::hf
