#include "import/hf/bert_encoder.h"
#include "import/hf/families.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// ELECTRA (Clark et al. 2020, arXiv 2003.10555): BERT's encoder over embeddings of their own width.
// "ForPreTraining" is the discriminator, one logit per token; "ForMaskedLM" the generator.
Model build(const Config& config, const ImportOptions& options) {
  BertEncoder e = read_bert_encoder(config, 30522, 512, 2);
  // The library's default is ELECTRA small.
  if (!config.has("hidden_size")) {
    e.hidden = 256;
    e.heads = config.size_or({"num_attention_heads"}, 4);
    e.ffn = config.size_or({"intermediate_size"}, 1024);
    head_dim_of(config, e.hidden, e.heads, "num_attention_heads");
  }
  e.embedding = config.size_or({"embedding_size"}, 128);
  const TokenShape shape =
      learned_token_shape(config, options, e.positions, {"max_position_embeddings"});
  const std::string task = task_of(config, "Model");
  Model model{.family = "electra", .global_batch = shape.batch, .seq = shape.seq};
  GraphBuilder b("electra", options.dtype);
  BertOutput out;
  {
    const auto scope = b.scope("electra");
    out = bert_encoder(b, e, shape, options);
  }
  const auto drop = [&](std::string_view name, ValueId x) {
    return dropout(b, name, x, e.dropout, options);
  };
  if (task == "ForPreTraining") {
    const auto scope = b.scope("discriminator_predictions");
    ValueId y = b.linear("dense", out.x, {"hidden", e.hidden, 1}, true);
    y = b.op(e.act, "activation", {y});
    b.linear("dense_prediction", y, {"classes", 1, 1}, true);
  } else if (task == "ForMaskedLM") {
    const Dim width{e.embedding == e.hidden ? "hidden" : "embedding", e.embedding, 1};
    ValueId y = b.linear("generator_predictions.dense", out.x, width, true);
    y = b.op("gelu", "generator_predictions.activation", {y});
    y = b.layer_norm("generator_predictions.LayerNorm", y);
    predict_tokens(b, "generator_lm_head", y, out.table,
                   b.parameter("generator_lm_head.bias", {{"vocab", e.vocab, 1}}));
  } else if (task == "ForSequenceClassification") {
    const auto scope = b.scope("classifier");
    ValueId y = drop("dropout_in", one_token(b, "first_token", out.x, 0));
    y = b.op("gelu", "activation", {b.linear("dense", y, {"hidden", e.hidden, 1}, true)});
    classify(b, "out_proj", drop("dropout", y), label_count(config));
  } else if (task == "ForTokenClassification") {
    classify(b, "classifier", drop("dropout", out.x), label_count(config));
  } else if (task == "ForQuestionAnswering") {
    b.linear("qa_outputs", out.x, {"classes", label_count(config), 1}, true);
  } else if (task != "Model") {
    note_unknown_task(model, "ELECTRA", task);
  }
  model.graph = b.finish();
  return model;
}

constexpr std::string_view kTypes[] = {"electra"};
constexpr std::string_view kStems[] = {"Electra"};

}  // namespace

const Family kElectra = {
    .name = "electra",
    .summary = "ELECTRA: BERT's encoder over narrower embeddings",
    .model_types = kTypes,
    .architectures = kStems,
    .build = build,
};

}  // namespace meshwright::hf
