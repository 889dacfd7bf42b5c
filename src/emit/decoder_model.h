#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/segments.h"

namespace meshwright {

// What frameworks that build their own models are told about one: the sizes and choices of a
// decoder-only language model, read off its graph and nothing else.

enum class DecoderNorm {
  kRms,    ///< Weight only.
  kLayer,  ///< Weight and bias.
};

struct DecoderAttention {
  std::int64_t heads = 1, kv_heads = 1;
  std::int64_t head_dim = 1;    ///< Of queries and keys.
  std::int64_t value_dim = 1;   ///< Of values.
  std::int64_t rotary_dim = 0;  ///< Rotated dims of a head; 0 = no rotary positions.
  std::int64_t q_lora = 0;      ///< Compressed width of queries; 0 = not compressed.
  std::int64_t kv_lora = 0;     ///< Multi-head latent attention (DeepSeek-V2) when positive.
  bool qkv_bias = false, out_bias = false;
  bool qk_norm = false;     ///< Norm of each head's queries and keys, with a weight.
  std::int64_t window = 0;  ///< Keys that a query sees, itself included; 0 = all before it.
  bool causal = false;
  bool alibi = false;
  bool sinks = false;  ///< A learned logit per head joins the softmax.
  bool unfused = false;
  double softcap = 0, scale = 0, dropout = 0;

  friend bool operator==(const DecoderAttention&, const DecoderAttention&) = default;
};

/// A dense feed-forward network, or one expert.
struct DecoderMlp {
  std::int64_t ffn = 1;
  bool gated = false;
  std::string act = "gelu";  ///< Kind of the activation, or `act` of the gate.
  bool bias = false;

  friend bool operator==(const DecoderMlp&, const DecoderMlp&) = default;
};

struct DecoderExperts {
  std::int64_t experts = 1, top_k = 1;
  DecoderMlp expert;
  std::string score = "softmax";
  bool router_bias = false;
  std::int64_t groups = 0, top_groups = 0;  ///< Of node-limited routing; 0 = none.
  std::int64_t shared_ffn = 0;              ///< Width of what every token passes; 0 = none.
  bool shared_gate = false;

  friend bool operator==(const DecoderExperts&, const DecoderExperts&) = default;
};

/// Norm, attention, residual, norm, network, residual.
struct DecoderLayer {
  DecoderNorm norm = DecoderNorm::kRms;
  DecoderAttention attention;
  std::optional<DecoderMlp> mlp;
  std::optional<DecoderExperts> experts;  ///< One of the two.
  double dropout = 0;                     ///< Of both sublayers' results.

  friend bool operator==(const DecoderLayer&, const DecoderLayer&) = default;
};

struct DecoderModel {
  std::int64_t hidden = 1, vocab = 1, seq = 1;
  std::int64_t position_rows = 0;  ///< Of a learned position table; 0 = none.
  bool tied = false;               ///< The head's weight is the embedding's.
  DecoderNorm final_norm = DecoderNorm::kRms;
  double embedding_dropout = 0;
  std::vector<DecoderLayer> layers;
  int mtp_layers = 0;  ///< Multi-token-prediction modules behind the last layer (DeepSeek-V3).
};

/// The model, or why it is no decoder of this form: one sentence per kind of layer and part.
struct DecoderReading {
  DecoderModel model;               ///< Complete when there are no faults.
  std::vector<std::string> faults;  ///< "layer model.layers.0: attention and MLP run in parallel".
};

/// Follows the dataflow of every kind of layer; an operator that has no place in the form is a
/// fault, never ignored. Linear in the size of the graph.
DecoderReading read_decoder(const Graph& graph, const std::vector<Segment>& segments);

/// Whether a segment is a multi-token-prediction module: a layer with a loss of its own.
bool is_prediction_module(const Graph& graph, const Segment& segment);

}  // namespace meshwright
