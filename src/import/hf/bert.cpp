#include <fmt/format.h>

#include "import/hf/bert_encoder.h"
#include "import/hf/families.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// Masked language model: dense, activation, norm, and the word embeddings as output layer with a
// bias of its own.
void masked_lm(GraphBuilder& b, const BertEncoder& e, const BertOutput& out) {
  const auto scope = b.scope("cls.predictions");
  ValueId y = b.linear("transform.dense", out.x, {"hidden", e.hidden, 1}, true);
  y = b.layer_norm("transform.LayerNorm", b.op(e.act, "transform.activation", {y}));
  predict_tokens(b, "decoder", y, out.table, b.parameter("bias", {{"vocab", e.vocab, 1}}));
}

Model build(const Config& config, const ImportOptions& options) {
  const BertEncoder e = read_bert_encoder(config, 30522, 512, 2);
  const TokenShape shape =
      learned_token_shape(config, options, e.positions, {"max_position_embeddings"});
  const std::string task = task_of(config, "Model");
  Model model{.family = "bert", .global_batch = shape.batch, .seq = shape.seq};
  GraphBuilder b("bert", options.dtype);
  BertOutput out;
  ValueId pooled;
  // The pooler exists where the class uses it: MLM, tagging and span heads read every token.
  const bool pools = task == "Model" || task == "ForPreTraining" ||
                     task == "ForNextSentencePrediction" || task == "ForSequenceClassification" ||
                     task == "ForMultipleChoice";
  if (task == "Model") {
    out = bert_encoder(b, e, shape, options);
    bert_pooler(b, "pooler", out.x, e.hidden);
  } else {
    const auto scope = b.scope("bert");
    out = bert_encoder(b, e, shape, options);
    if (pools) pooled = bert_pooler(b, "pooler", out.x, e.hidden);
  }
  const auto classify_pooled = [&](std::int64_t labels) {
    classify(b, "classifier", dropout(b, "dropout", pooled, e.dropout, options), labels);
  };
  if (task == "ForMaskedLM" || task == "LMHeadModel") {
    masked_lm(b, e, out);
  } else if (task == "ForPreTraining") {
    {
      const auto scope = b.scope("cls.next_sentence");
      classify(b, "seq_relationship", pooled, 2);
    }
    masked_lm(b, e, out);
  } else if (task == "ForNextSentencePrediction") {
    const auto scope = b.scope("cls");
    classify(b, "seq_relationship", pooled, 2);
  } else if (task == "ForSequenceClassification") {
    classify_pooled(label_count(config));
  } else if (task == "ForMultipleChoice") {
    // One score per choice; choices are rows of the batch.
    b.linear("classifier", dropout(b, "dropout", pooled, e.dropout, options), {"classes", 1, 1},
             true);
  } else if (task == "ForTokenClassification") {
    classify(b, "classifier", dropout(b, "dropout", out.x, e.dropout, options),
             label_count(config));
  } else if (task == "ForQuestionAnswering") {
    b.linear("qa_outputs", out.x, {"classes", label_count(config), 1}, true);
  } else if (task != "Model") {
    note_unknown_task(model, "BERT", task);
  }
  model.graph = b.finish();
  return model;
}

constexpr std::string_view kTypes[] = {"bert"};
constexpr std::string_view kStems[] = {"Bert"};

}  // namespace

const Family kBert = {
    .name = "bert",
    .summary = "BERT: post-norm encoder",
    .model_types = kTypes,
    .architectures = kStems,
    .build = build,
};

}  // namespace meshwright::hf
