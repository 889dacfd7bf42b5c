#include <fmt/format.h>

#include <algorithm>

#include "import/hf/bert_encoder.h"
#include "import/hf/families.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// RoBERTa (Liu et al. 2019, arXiv 1907.11692), XLM-RoBERTa and CamemBERT: BERT's encoder. The first
// pad_token_id + 1 rows of the position table are never used by real tokens, so 514 rows serve 512.
Model build(const Config& config, const ImportOptions& options) {
  const BertEncoder e = read_bert_encoder(config, 50265, 514, 1);
  const std::int64_t unused = config.count_or({"pad_token_id"}, 1) + 1;
  const TokenShape shape =
      learned_token_shape(config, options, std::max<std::int64_t>(e.positions - unused, 1),
                          {"max_position_embeddings"});
  const std::string task = task_of(config, "Model");
  Model model{.family = "roberta", .global_batch = shape.batch, .seq = shape.seq};
  GraphBuilder b("roberta", options.dtype);
  BertOutput out;
  ValueId pooled;
  if (task == "Model") {
    out = bert_encoder(b, e, shape, options);
    bert_pooler(b, "pooler", out.x, e.hidden);
  } else {
    const auto scope = b.scope("roberta");
    out = bert_encoder(b, e, shape, options);
    if (task == "ForMultipleChoice") pooled = bert_pooler(b, "pooler", out.x, e.hidden);
  }
  const auto drop = [&](std::string_view name, ValueId x) {
    return dropout(b, name, x, e.dropout, options);
  };
  if (task == "ForMaskedLM" || task == "ForCausalLM") {
    const auto scope = b.scope("lm_head");
    ValueId y = b.linear("dense", out.x, {"hidden", e.hidden, 1}, true);
    y = b.layer_norm("layer_norm", b.op("gelu", "activation", {y}));
    predict_tokens(b, "decoder", y, out.table, b.parameter("bias", {{"vocab", e.vocab, 1}}));
  } else if (task == "ForSequenceClassification") {
    const auto scope = b.scope("classifier");
    ValueId y = drop("dropout_in", one_token(b, "first_token", out.x, 0));
    y = b.op("tanh", "tanh", {b.linear("dense", y, {"hidden", e.hidden, 1}, true)});
    classify(b, "out_proj", drop("dropout", y), label_count(config));
  } else if (task == "ForMultipleChoice") {
    b.linear("classifier", drop("dropout", pooled), {"classes", 1, 1}, true);
  } else if (task == "ForTokenClassification") {
    classify(b, "classifier", drop("dropout", out.x), label_count(config));
  } else if (task == "ForQuestionAnswering") {
    b.linear("qa_outputs", out.x, {"classes", label_count(config), 1}, true);
  } else if (task != "Model") {
    note_unknown_task(model, "RoBERTa", task);
  }
  model.graph = b.finish();
  return model;
}

constexpr std::string_view kTypes[] = {"roberta", "xlm-roberta", "camembert"};
constexpr std::string_view kStems[] = {"Roberta", "XLMRoberta", "Camembert"};

}  // namespace

const Family kRoberta = {
    .name = "roberta",
    .summary = "RoBERTa, XLM-RoBERTa, CamemBERT: BERT's encoder, other heads",
    .model_types = kTypes,
    .architectures = kStems,
    .build = build,
};

}  // namespace meshwright::hf
