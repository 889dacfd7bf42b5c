#pragma once

#include <utility>
#include <vector>

#include "ops/op_def.h"
#include "plan/plan.h"

namespace meshwright {

/// What the lowering asks about a graph again and again, read off it once.
struct GraphTables {
  struct Use {
    int op = 0;
    int operand = 0;
  };

  GraphTables(const Graph& graph, const std::vector<Segment>& segments, const Overrides* overrides);

  const Graph& graph;
  const std::vector<Segment>& segments;
  const Overrides* overrides;          ///< May be null.
  std::vector<const OpDef*> defs;      ///< Per operator.
  std::vector<std::vector<Use>> uses;  ///< Per value, in order.
  std::vector<int> position;           ///< Per value: which result of its producer it is.
  std::vector<int> segment_of_op;
  std::vector<bool> has_gradient;  ///< Per value (ops/gradient_flow.h).
  /// Per operator: operands are parameters and constants only (a relative position bias).
  std::vector<char> of_parameters_only;

  /// Values of parameters only whose gradients must be whole where they rest: stages of other mesh
  /// shape use them, to which no partial sum can go. Set per plan; empty = none.
  std::vector<ValueId> whole_gradients;

  bool crosses(ValueId id) const;  ///< Whether segments besides the producer's use an activation.
  /// Whether a gradient comes back from segments besides the producer's.
  bool gradient_crosses(ValueId id) const;
  /// How many segments use a parameter.
  int segment_uses(ValueId id) const;
};

/// The value that takes the place of `id` (a value that segment `from` makes or uses) in `to`, a
/// segment of the same class.
ValueId value_in_copy(const GraphTables& tables, int from, int to, ValueId id);

}  // namespace meshwright
