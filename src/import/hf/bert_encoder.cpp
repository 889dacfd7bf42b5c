#include "import/hf/bert_encoder.h"

#include <fmt/format.h>

#include "import/hf/sizes.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

ValueId embeddings(GraphBuilder& b, const BertEncoder& e, TokenShape shape, ValueId ids,
                   ValueId table, const ImportOptions& options) {
  const auto scope = b.scope("embeddings");
  const Dim width{e.embedding == e.hidden ? "hidden" : "embedding", e.embedding, 1};
  ValueId x = b.op("embedding", "word_embeddings", {ids, table});
  if (e.types > 0) {
    const ValueId types = b.input("token_type_ids", b.type(ids));
    const ValueId rows =
        b.parameter("token_type_embeddings.weight", {{"types", e.types, 1}, width});
    x = b.op("add", "add_types", {x, b.op("embedding", "token_type_embeddings", {types, rows})});
  }
  const ValueId positions = b.buffer("position_ids", {DType::kI64, {{"seq", shape.seq, 1}}});
  const ValueId rows =
      b.parameter("position_embeddings.weight", {{"positions", e.positions, 1}, width});
  x = b.op("add", "add_positions",
           {x, b.op("embedding", "position_embeddings", {positions, rows})});
  x = b.layer_norm("LayerNorm", x);
  return dropout(b, "dropout", x, e.dropout, options);
}

ValueId layer(GraphBuilder& b, const BertEncoder& e, ValueId x, const ImportOptions& options) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = e.heads;
  spec.head_dim = e.hidden / e.heads;
  spec.q_bias = spec.k_bias = spec.v_bias = spec.o_bias = true;
  spec.causal = e.causal;
  spec.dropout = e.attention_dropout;
  const AttentionNames names{std::string(e.names.query), std::string(e.names.key),
                             std::string(e.names.value), std::string(e.names.attention_output)};
  ValueId y = attention_block(b, {x}, spec, names, options);
  y = dropout(b, "attention.dropout", y, e.dropout, options);
  x = b.layer_norm(e.names.attention_norm, b.op("add", "attention.add", {y, x}));

  MlpSpec mlp{.ffn = e.ffn, .act = e.act, .up_bias = true, .down_bias = true};
  y = mlp_block(b, x, mlp, {"", std::string(e.names.up), std::string(e.names.down)});
  y = dropout(b, "output.dropout", y, e.dropout, options);
  return b.layer_norm(e.names.output_norm, b.op("add", "output.add", {y, x}));
}

}  // namespace

BertEncoder read_bert_encoder(const Config& config, std::int64_t vocab, std::int64_t positions,
                              std::int64_t types) {
  BertEncoder e;
  e.hidden = config.core_size_or({"hidden_size"}, 768);
  e.layers = layer_count(config, {"num_hidden_layers"}, 12);
  e.heads = config.core_size_or({"num_attention_heads"}, 12);
  head_dim_of(config, e.hidden, e.heads, "num_attention_heads");
  e.ffn = config.core_size_or({"intermediate_size"}, 3072);
  e.vocab = config.core_size_or({"vocab_size"}, vocab);
  e.positions = config.size_or({"max_position_embeddings"}, positions);
  e.types = config.count_or({"type_vocab_size"}, types);
  e.embedding = e.hidden;
  e.act = read_activation(config, {"hidden_act"}, "gelu");
  e.dropout = config.number_or({"hidden_dropout_prob"}, 0.1);
  e.attention_dropout = config.number_or({"attention_probs_dropout_prob"}, 0.1);
  e.causal = config.flag_or({"is_decoder"}, false);
  const std::string positions_kind = config.text_or({"position_embedding_type"}, "absolute");
  if (positions_kind != "absolute") {
    config.fail("position_embedding_type",
                fmt::format("position embeddings of kind '{}' are not supported", positions_kind),
                "absolute");
  }
  if (config.flag_or({"add_cross_attention"}, false)) {
    config.fail("add_cross_attention", "cross-attention in this family is not supported", "false");
  }
  return e;
}

BertOutput bert_encoder(GraphBuilder& b, const BertEncoder& e, TokenShape shape,
                        const ImportOptions& options) {
  const Dim width{e.embedding == e.hidden ? "hidden" : "embedding", e.embedding, 1};
  const ValueId ids =
      b.input("input_ids", {DType::kI64, {{"batch", shape.batch, 1}, {"seq", shape.seq, 1}}});
  const ValueId table =
      b.parameter("embeddings.word_embeddings.weight", {{"vocab", e.vocab, 1}, width});
  ValueId x = embeddings(b, e, shape, ids, table, options);
  if (e.embedding != e.hidden) x = b.linear("embeddings_project", x, {"hidden", e.hidden, 1}, true);
  for (std::int64_t i = 0; i < e.layers; ++i) {
    const auto scope = b.scope(fmt::format("{}.{}", e.layer_path, i));
    x = layer(b, e, x, options);
  }
  return {x, table};
}

ValueId bert_pooler(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t hidden) {
  const auto scope = b.scope(name);
  const ValueId y =
      b.linear("dense", one_token(b, "first_token", x, 0), {"hidden", hidden, 1}, true);
  return b.op("tanh", "activation", {y});
}

}  // namespace meshwright::hf
