#pragma once

#include <string_view>
#include <vector>

#include "ir/rule.h"
#include "mesh/sharding.h"

namespace meshwright {

/// Which mesh axes split the dimensions of each name: the compact form of one strategy per
/// operator. Lists are outermost axis first.
struct Roles {
  AxisList data;     ///< "batch".
  AxisList context;  ///< "seq" everywhere; attention then runs as a ring.
  AxisList tensor;   ///< "heads", "kv_heads", "ffn", "vocab".
  bool sequence_parallel =
      false;                ///< Operators without a tensor dimension split "seq" over `tensor` too.
  AxisList expert;          ///< "experts" of grouped operators.
  AxisList expert_tensor;   ///< "expert_ffn".
  AxisList expert_data;     ///< "batch" of grouped operators.
  AxisList expert_context;  ///< "seq" of grouped operators.

  friend bool operator==(const Roles&, const Roles&) = default;
};

/// For one operator: the axes that split each factor of its rule.
struct Strategy {
  std::vector<AxisList> factors;
  bool ring =
      false;  ///< Frozen sequence factors are split by passing keys and values around a ring.

  friend bool operator==(const Strategy&, const Strategy&) = default;
};

/// Whether a dimension name is a sequence of positions, or one that tensor parallelism splits.
bool is_sequence_label(std::string_view label);
bool is_tensor_label(std::string_view label);

/// The strategy that `roles` imply for an operator with this bound rule. A role splits a factor by
/// the longest prefix of its axes whose product divides the factor's units; "vocab" may be split
/// unevenly.
Strategy strategy_for(const Rule& rule, std::span<const TensorType> inputs, const Roles& roles,
                      const Mesh& mesh);

/// Shardings that a strategy implies: of operands, and of results as computed (partial where a
/// summed factor is split).
Sharding input_sharding(const Rule& rule, const Strategy& strategy, std::size_t input);
Sharding output_sharding(const Rule& rule, const Strategy& strategy, std::size_t output);

/// The sharding of an operand's gradient as computed by one device: an axis that splits a factor
/// which the operand lacks leaves a partial sum (a partitioned operator that reads a replicated
/// operand); an axis that splits nothing leaves equal copies (a replicated operator). (nnScaler's
/// gradient rule.)
Sharding input_gradient_sharding(const Rule& rule, const Strategy& strategy, std::size_t input);

}  // namespace meshwright
