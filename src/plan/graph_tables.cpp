#include "plan/graph_tables.h"

#include <algorithm>

#include "base/error.h"
#include "ops/gradient_flow.h"

namespace meshwright {

GraphTables::GraphTables(const Graph& g, const std::vector<Segment>& s, const Overrides* o)
    : graph(g), segments(s), overrides(o), has_gradient(requires_gradient(g)) {
  defs.reserve(g.ops.size());
  uses.resize(g.values.size());
  position.resize(g.values.size(), 0);
  segment_of_op.resize(g.ops.size());
  of_parameters_only.resize(g.ops.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for (int op = segments[i].first_op; op < segments[i].last_op; ++op) {
      segment_of_op[static_cast<std::size_t>(op)] = static_cast<int>(i);
    }
  }
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    defs.push_back(&find_op(op.kind));
    bool only = true;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      uses[op.inputs[k].index()].push_back({static_cast<int>(i), static_cast<int>(k)});
      const ValueKind kind = g.value(op.inputs[k]).kind;
      only &= kind == ValueKind::kParameter || kind == ValueKind::kBuffer;
    }
    of_parameters_only[i] = only;
    for (std::size_t k = 0; k < op.outputs.size(); ++k) {
      position[op.outputs[k].index()] = static_cast<int>(k);
    }
  }
}

bool GraphTables::crosses(ValueId id) const {
  const OpId producer = graph.value(id).producer;
  if (!producer.valid()) return false;
  const int home = segment_of_op[producer.index()];
  const auto& list = uses[id.index()];
  return std::any_of(list.begin(), list.end(), [&](const Use& use) {
    return segment_of_op[static_cast<std::size_t>(use.op)] != home;
  });
}

bool GraphTables::gradient_crosses(ValueId id) const {
  const OpId producer = graph.value(id).producer;
  if (!producer.valid() || !has_gradient[id.index()]) return false;
  const int home = segment_of_op[producer.index()];
  const auto& list = uses[id.index()];
  return std::any_of(list.begin(), list.end(), [&](const Use& use) {
    if (segment_of_op[static_cast<std::size_t>(use.op)] == home) return false;
    const Op& op = graph.ops[static_cast<std::size_t>(use.op)];
    return std::any_of(op.outputs.begin(), op.outputs.end(),
                       [&](ValueId out) { return bool{has_gradient[out.index()]}; });
  });
}

int GraphTables::segment_uses(ValueId id) const {
  int count = 0;
  int last = -1;
  for (const Use& use : uses[id.index()]) {
    const int segment = segment_of_op[static_cast<std::size_t>(use.op)];
    count += segment != last;
    last = segment;
  }
  return count;
}

ValueId value_in_copy(const GraphTables& t, int from, int to, ValueId id) {
  if (from == to) return id;
  const int a = t.segments[static_cast<std::size_t>(from)].first_op;
  const int shift = t.segments[static_cast<std::size_t>(to)].first_op - a;
  const int last = t.segments[static_cast<std::size_t>(from)].last_op;
  const OpId producer = t.graph.value(id).producer;
  if (producer.valid() && producer.value >= a && producer.value < last) {
    return t.graph.ops[producer.index() + static_cast<std::size_t>(shift)]
        .outputs[static_cast<std::size_t>(t.position[id.index()])];
  }
  for (const GraphTables::Use& use : t.uses[id.index()]) {
    if (use.op < a || use.op >= last) continue;
    return t.graph.ops[static_cast<std::size_t>(use.op + shift)]
        .inputs[static_cast<std::size_t>(use.operand)];
  }
  throw InternalError("value_in_copy: the segment does not know the value");
}

}  // namespace meshwright
