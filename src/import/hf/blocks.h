#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "import/import.h"
#include "ops/builder.h"

namespace meshwright::hf {

// Sublayers that many families share. Each adds its operators in the builder's current scope to an
// input [batch, seq, hidden] and gives a result of the same type. Names are the module names of the
// library; fused projections become one linear per part, so that each part can be split by itself.

enum class NormKind {
  kNone,
  kRms,            ///< Weight only.
  kLayer,          ///< Weight and bias.
  kLayerNoBias,    ///< Weight only.
  kLayerUnscaled,  ///< No parameters (OLMo).
  kRmsUnscaled,    ///< No parameters (Llama 4's q/k norm).
};
ValueId norm(GraphBuilder& b, NormKind kind, std::string_view name, ValueId x);

/// A norm over each head's dims of queries and keys.
enum class QkNorm {
  kNone,
  kPerHead,   ///< One weight of head_dim, shared by all heads (Qwen 3).
  kFlat,      ///< Over all heads at once (OLMo 2).
  kEachHead,  ///< Own weights per head, normalized per head (Cohere, StableLM).
};

struct AttentionSpec {
  std::int64_t heads = 1, kv_heads = 1, head_dim = 1;
  std::int64_t value_dim = 0;  ///< Width of a value head; 0 = head_dim.
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false;
  std::int64_t rotary_dim = 0;  ///< Dims of each head that are rotated; 0 = no rotary positions.
  QkNorm qk_norm = QkNorm::kNone;
  NormKind qk_norm_kind = NormKind::kRms;
  bool causal = true;
  std::int64_t window = 0;   ///< Sliding (or chunked) attention; 0 = all positions.
  bool alibi = false;        ///< Linear position biases inside the kernel.
  bool sinks = false;        ///< A learned logit per head that joins the softmax (GPT-OSS).
  double softcap = 0;        ///< Cap of the attention logits; 0 = none.
  double scale = 0;          ///< Of the attention logits; 0 = one over the root of head_dim.
  double dropout = 0;        ///< Of attention probabilities, when options keep dropout.
  bool output_gate = false;  ///< Result times sigmoid of a second query projection (Qwen 3-Next).
  bool output = true;        ///< Project back to hidden.

  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1) when kv_lora > 0:
  // head_dim = nope_dim + rotary_dim, kv_heads = heads.
  std::int64_t q_lora = 0;  ///< 0 = queries are not compressed.
  std::int64_t kv_lora = 0;

  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

struct AttentionNames {
  std::string q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj";
  std::string q_norm = "q_norm", k_norm = "k_norm";
};

/// Where attention reads keys and values (default: from the queries' own input) and a bias
/// [heads, seq, keys] added to its logits.
struct AttentionInputs {
  ValueId x;
  ValueId memory = ValueId();
  ValueId bias = ValueId();
};
ValueId attention_block(GraphBuilder& b, const AttentionInputs& inputs, const AttentionSpec& spec,
                        const AttentionNames& names, const ImportOptions& options);

struct MlpSpec {
  std::int64_t ffn = 1;
  bool gated = false;
  std::string act = "gelu";  ///< Operator kind of the activation (activation_kind()).
  bool up_bias = false, down_bias = false;

  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};
struct MlpNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};
ValueId mlp_block(GraphBuilder& b, ValueId x, const MlpSpec& spec, const MlpNames& names);

struct MoeSpec {
  std::int64_t experts = 1, top_k = 1;
  std::int64_t ffn = 1;  ///< Of one expert.
  bool gated = true;
  std::string act = "silu";
  bool expert_bias = false;
  bool router_bias = false;  ///< A linear's bias, or the correction bias of DeepSeek-V3.
  std::string score = "softmax";
  std::int64_t groups = 0;      ///< Node-limited routing: groups of experts; 0 = none.
  std::int64_t top_groups = 0;  ///< Groups that one token may use.
  std::int64_t shared_ffn = 0;  ///< Width of the experts every token passes; 0 = none.
  bool shared_gate = false;     ///< Shared result times sigmoid of a projection to one (Qwen 2).

  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};
struct MoeNames {
  std::string router = "gate", experts = "experts", shared = "shared_experts",
              shared_gate = "shared_expert_gate";
  MlpNames mlp;
};
ValueId moe_block(GraphBuilder& b, ValueId x, const MoeSpec& spec, const MoeNames& names);

/// Flat heads [batch, seq, heads * d] <-> [batch, seq, heads, d].
ValueId split_heads(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t head_dim);
ValueId merge_heads(GraphBuilder& b, std::string_view name, ValueId x);

/// dropout after `x` when options keep dropout and p > 0; else `x`.
ValueId dropout(GraphBuilder& b, std::string_view name, ValueId x, double p,
                const ImportOptions& options);

/// The operator kind of one of the library's activation names ("gelu_new" -> "gelu"), or empty.
std::string_view activation_kind(std::string_view hidden_act);

}  // namespace meshwright::hf
