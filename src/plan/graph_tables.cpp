#include "plan/graph_tables.h"

#include <algorithm>

#include "base/error.h"

namespace meshwright {

GraphTables::GraphTables(const Graph& g, const std::vector<Segment>& s, const Overrides* o)
    : graph(g), segments(s), overrides(o) {
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
  // Whether a value depends on a parameter in a way that can be differentiated.
  std::vector<char> depends(g.values.size());
  for (std::size_t v = 0; v < g.values.size(); ++v) {
    depends[v] = g.values[v].kind == ValueKind::kParameter && is_floating(g.values[v].type.dtype);
  }
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    defs.push_back(&find_op(op.kind));
    bool any = false;
    bool only = true;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      uses[op.inputs[k].index()].push_back({static_cast<int>(i), static_cast<int>(k)});
      any |= depends[op.inputs[k].index()] != 0;
      const ValueKind kind = g.value(op.inputs[k]).kind;
      only &= kind == ValueKind::kParameter || kind == ValueKind::kBuffer;
    }
    of_parameters_only[i] = only;
    if (op.kind == "detach") any = false;
    for (std::size_t k = 0; k < op.outputs.size(); ++k) {
      position[op.outputs[k].index()] = static_cast<int>(k);
      depends[op.outputs[k].index()] = any && is_floating(g.value(op.outputs[k]).type.dtype);
    }
  }
  has_gradient.resize(g.values.size());
  for (std::size_t v = 0; v < g.values.size(); ++v) {
    // A floating-point result that nothing uses is a final one: the loss, or what stands for it.
    has_gradient[v] = depends[v] && uses[v].empty() && g.values[v].producer.valid();
  }
  for (std::size_t i = g.ops.size(); i-- > 0;) {
    const Op& op = g.ops[i];
    const bool reached = std::any_of(op.outputs.begin(), op.outputs.end(),
                                     [&](ValueId id) { return has_gradient[id.index()] != 0; });
    if (!reached) continue;
    for (ValueId id : op.inputs) has_gradient[id.index()] = depends[id.index()];
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
                       [&](ValueId out) { return has_gradient[out.index()] != 0; });
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
