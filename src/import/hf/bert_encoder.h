#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "import/hf/blocks.h"
#include "import/hf/family.h"

namespace meshwright::hf {

/// Module names of a post-norm encoder layer, relative to the layer.
struct BertLayerNames {
  std::string_view query = "attention.self.query";
  std::string_view key = "attention.self.key";
  std::string_view value = "attention.self.value";
  std::string_view attention_output = "attention.output.dense";
  std::string_view attention_norm = "attention.output.LayerNorm";
  std::string_view up = "intermediate.dense";
  std::string_view down = "output.dense";
  std::string_view output_norm = "output.LayerNorm";
};

/// An encoder of the BERT line (Devlin et al. 2019, arXiv 1810.04805): learned positions, post-norm
/// layers with biases.
struct BertEncoder {
  std::int64_t hidden = 768, layers = 12, heads = 12, ffn = 3072, vocab = 30522;
  std::int64_t positions = 512;  ///< Rows of the position table.
  std::int64_t types = 2;        ///< Token types; 0 = none.
  std::int64_t embedding = 768;  ///< Width of the tables; projected when not `hidden`.
  bool causal = false;           ///< A decoder's mask (BertLMHeadModel).
  std::string act = "gelu";
  double dropout = 0.1, attention_dropout = 0.1;
  std::string_view layer_path = "encoder.layer";
  BertLayerNames names;
};

/// Sizes under BERT's own keys; the defaults are those of BERT base. Throws Error for what has no
/// operator here (relative position embeddings, cross-attention).
BertEncoder read_bert_encoder(const Config& config, std::int64_t vocab, std::int64_t positions,
                              std::int64_t types);

struct BertOutput {
  ValueId x;      ///< [batch, seq, hidden].
  ValueId table;  ///< Word embeddings [vocab, embedding], for tied output layers.
};
/// Embeddings and layers, in the builder's current scope.
BertOutput bert_encoder(GraphBuilder& b, const BertEncoder& encoder, TokenShape shape,
                        const ImportOptions& options);

/// dense + tanh of the first token, [batch, hidden], named `<name>.dense`.
ValueId bert_pooler(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t hidden);

}  // namespace meshwright::hf
