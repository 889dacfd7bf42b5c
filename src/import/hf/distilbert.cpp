#include "import/hf/bert_encoder.h"
#include "import/hf/families.h"
#include "import/hf/sizes.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT's layers without token types and pooler.
BertEncoder read(const Config& config) {
  BertEncoder e;
  e.hidden = e.embedding = config.core_size_or({"dim", "hidden_size"}, 768);
  e.layers = layer_count(config, {"n_layers", "num_hidden_layers"}, 6);
  e.heads = config.core_size_or({"n_heads", "num_attention_heads"}, 12);
  head_dim_of(config, e.hidden, e.heads, config.present_key({"n_heads", "num_attention_heads"}));
  e.ffn = config.core_size_or({"hidden_dim"}, 3072);
  e.vocab = config.core_size_or({"vocab_size"}, 30522);
  e.positions = config.size_or({"max_position_embeddings"}, 512);
  e.types = 0;
  e.act = read_activation(config, {"activation"}, "gelu");
  e.dropout = config.number_or({"dropout"}, 0.1);
  e.attention_dropout = config.number_or({"attention_dropout"}, 0.1);
  e.layer_path = "transformer.layer";
  e.names = {"attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
             "sa_layer_norm",   "ffn.lin1",        "ffn.lin2",        "output_layer_norm"};
  return e;
}

Model build(const Config& config, const ImportOptions& options) {
  const BertEncoder e = read(config);
  const TokenShape shape =
      learned_token_shape(config, options, e.positions, {"max_position_embeddings"});
  const std::string task = task_of(config, "Model");
  Model model{.family = "distilbert", .global_batch = shape.batch, .seq = shape.seq};
  GraphBuilder b("distilbert", options.dtype);
  BertOutput out;
  {
    const auto scope = b.scope("distilbert");
    out = bert_encoder(b, e, shape, options);
  }
  const Dim hidden{"hidden", e.hidden, 1};
  if (task == "ForMaskedLM") {
    ValueId y = b.op(e.act, "vocab_activation", {b.linear("vocab_transform", out.x, hidden, true)});
    y = b.layer_norm("vocab_layer_norm", y);
    predict_tokens(b, "vocab_projector", y, out.table,
                   b.parameter("vocab_projector.bias", {{"vocab", e.vocab, 1}}));
  } else if (task == "ForSequenceClassification" || task == "ForMultipleChoice") {
    const double p = config.number_or({"seq_classif_dropout"}, 0.2);
    ValueId y = b.linear("pre_classifier", one_token(b, "first_token", out.x, 0), hidden, true);
    y = dropout(b, "dropout", b.op("relu", "relu", {y}), p, options);
    if (task == "ForMultipleChoice") {
      b.linear("classifier", y, {"classes", 1, 1}, true);
    } else {
      classify(b, "classifier", y, label_count(config));
    }
  } else if (task == "ForTokenClassification") {
    classify(b, "classifier", dropout(b, "dropout", out.x, e.dropout, options),
             label_count(config));
  } else if (task == "ForQuestionAnswering") {
    const double p = config.number_or({"qa_dropout"}, 0.1);
    b.linear("qa_outputs", dropout(b, "dropout", out.x, p, options),
             {"classes", label_count(config), 1}, true);
  } else if (task != "Model") {
    note_unknown_task(model, "DistilBERT", task);
  }
  model.graph = b.finish();
  return model;
}

constexpr std::string_view kTypes[] = {"distilbert"};
constexpr std::string_view kStems[] = {"DistilBert"};

}  // namespace

const Family kDistilBert = {
    .name = "distilbert",
    .summary = "DistilBERT: BERT's layers without token types and pooler",
    .model_types = kTypes,
    .architectures = kStems,
    .build = build,
};

}  // namespace meshwright::hf
