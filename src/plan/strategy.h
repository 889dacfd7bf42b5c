#pragma once

#include <span>
#include <string>
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

/// The roles by the names that files and overrides use.
struct NamedRole {
  std::string_view name;
  AxisList Roles::* field;
};
std::span<const NamedRole> named_roles();

/// For one operator: the axes that split each factor of its rule.
struct Strategy {
  std::vector<AxisList> factors;
  bool ring =
      false;  ///< Frozen sequence factors are split by passing keys and values around a ring.

  friend bool operator==(const Strategy&, const Strategy&) = default;
};

/// One operator's op-trans, written over what the roles imply. Axes are names of mesh axes ("tp0"),
/// of roles ("data", "context", "tensor", "expert", "expert_tensor", "expert_data",
/// "expert_context": all their axes), or of a kind ("dp", "cp", "tp": every axis so numbered).
struct OpOverride {
  struct Split {
    std::string factor;             ///< Label ("heads") or letter of the operator's rule ("k").
    std::vector<std::string> axes;  ///< Outermost first; empty = not split.
    friend bool operator==(const Split&, const Split&) = default;
  };
  bool replicate = false;  ///< Splits of the roles are dropped first.
  std::vector<Split> splits;
  friend bool operator==(const OpOverride&, const OpOverride&) = default;
};

/// The axes that a name stands for (see OpOverride), outermost first. A kind that a mesh lacks
/// because its degree is 1 has none. Throws Error for a name that is no axis or role.
AxisList axes_named(std::string_view name, const Roles& roles, const Mesh& mesh);

/// Applies an override. Throws Error for a factor that the operator lacks or may not split, an axis
/// that the mesh lacks, an axis used twice, or more parts than the factor has units.
Strategy overridden(Strategy strategy, const Rule& rule, const OpOverride& override_rule,
                    const Roles& roles, const Mesh& mesh);

/// Throws Error unless every device's part of every operand and result is an interval of indices
/// that the factors agree on: of a grouped dimension "(h d)" an inner factor is split only where
/// the outer ones are split into single elements, an outer one evenly or on the dimension's units;
/// primed dimensions evenly.
void check_strategy(const Strategy& strategy, const Rule& rule, std::span<const TensorType> inputs,
                    std::span<const TensorType> outputs, const Mesh& mesh);

/// Whether a dimension name is a sequence of positions, or one that tensor parallelism splits.
bool is_sequence_label(std::string_view label);
bool is_tensor_label(std::string_view label);

/// The strategy that `roles` imply for an operator with this bound rule. A role splits a factor by
/// the longest prefix of its axes whose product divides the factor's units; "vocab" may be split
/// unevenly. `ring`: frozen sequence factors may be split too (OpDef::ring).
Strategy strategy_for(const Rule& rule, std::span<const TensorType> inputs, const Roles& roles,
                      const Mesh& mesh, bool ring);

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
