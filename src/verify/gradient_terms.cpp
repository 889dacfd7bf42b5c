#include "verify/gradient_terms.h"

namespace meshwright {

GraphUses::GraphUses(const Graph& graph)
    : graph_(graph),
      flow_(gradient_flow(graph)),
      requires_(graph.values.size()),
      differentiates_(graph.ops.size()),
      first_(graph.values.size() + 2) {
  for (std::size_t v = 0; v < requires_.size(); ++v) {
    requires_[v] = flow_.depends[v] && flow_.reaches[v];
  }
  for (const Op& op : graph.ops) {
    for (ValueId id : op.inputs) ++first_[id.index() + 2];
  }
  for (std::size_t v = 2; v < first_.size(); ++v) first_[v] += first_[v - 1];
  uses_.resize(first_.back());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      uses_[first_[op.inputs[k].index() + 1]++] = {static_cast<int>(i), static_cast<int>(k)};
    }
    for (ValueId id : op.outputs) {
      if (requires_[id.index()]) differentiates_[i] = true;
    }
  }
  first_.pop_back();
}

bool GraphUses::owes(int op, std::size_t operand) const {
  const auto i = static_cast<std::size_t>(op);
  return differentiates_[i] && flow_.depends[graph_.ops[i].inputs[operand].index()];
}

}  // namespace meshwright
