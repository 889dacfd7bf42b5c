#include "ops/gradient_flow.h"

#include <algorithm>

namespace meshwright {
namespace {

bool floating(const Graph& graph, ValueId id) { return is_floating(graph.value(id).type.dtype); }

bool cuts(const Op& op) { return op.kind == "detach"; }

std::vector<bool> losses(const Graph& graph) {
  std::vector<bool> loss(graph.values.size());
  bool any = false;
  for (const Op& op : graph.ops) {
    if (op.kind != "cross_entropy") continue;
    for (const ValueId id : op.outputs) loss[id.index()] = any = true;
  }
  if (any) return loss;
  for (const Op& op : graph.ops) {
    for (const ValueId id : op.outputs) loss[id.index()] = floating(graph, id);
  }
  for (const Op& op : graph.ops) {
    for (const ValueId id : op.inputs) loss[id.index()] = false;
  }
  return loss;
}

}  // namespace

GradientFlow gradient_flow(const Graph& graph) {
  GradientFlow flow;
  flow.depends.resize(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    flow.depends[i] = value.kind == ValueKind::kParameter && is_floating(value.type.dtype);
  }
  for (const Op& op : graph.ops) {
    if (cuts(op)) continue;
    const bool any = std::ranges::any_of(
        op.inputs, [&](ValueId id) { return static_cast<bool>(flow.depends[id.index()]); });
    for (const ValueId id : op.outputs) flow.depends[id.index()] = any && floating(graph, id);
  }
  flow.reaches = losses(graph);
  for (auto op = graph.ops.rbegin(); op != graph.ops.rend(); ++op) {
    if (cuts(*op)) continue;
    const bool any = std::ranges::any_of(
        op->outputs, [&](ValueId id) { return static_cast<bool>(flow.reaches[id.index()]); });
    if (!any) continue;
    for (const ValueId id : op->inputs) {
      if (floating(graph, id)) flow.reaches[id.index()] = true;
    }
  }
  return flow;
}

std::vector<bool> requires_gradient(const Graph& graph) {
  GradientFlow flow = gradient_flow(graph);
  for (std::size_t i = 0; i < flow.depends.size(); ++i) {
    flow.depends[i] = flow.depends[i] && flow.reaches[i];
  }
  return std::move(flow.depends);
}

}  // namespace meshwright
