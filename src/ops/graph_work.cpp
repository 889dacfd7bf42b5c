#include "ops/graph_work.h"

#include <algorithm>

#include "ops/gradient_flow.h"
#include "ops/op_def.h"

namespace meshwright {

Flops model_flops(const Graph& graph) {
  Flops total;
  const std::vector<bool> needed = requires_gradient(graph);
  for (const Op& op : graph.ops) {
    std::vector<TensorType> inputs, outputs;
    for (ValueId id : op.inputs) inputs.push_back(graph.value(id).type);
    for (ValueId id : op.outputs) outputs.push_back(graph.value(id).type);
    const Work work = work_of(find_op(op.kind), {op.attrs, inputs, outputs});
    // Only products count: matrix units do them, and so do the published formulas.
    if (work.kernel == KernelClass::kMatmul || work.kernel == KernelClass::kAttention) {
      // What no gradient passes (a recycled iteration but the last) has no backward pass.
      const bool backward = std::ranges::any_of(
          op.outputs, [&](ValueId id) { return static_cast<bool>(needed[id.index()]); });
      total += work.forward_flops * (backward ? 3 : 1);
    }
  }
  return total;
}

double tokens_per_step(const Graph& graph) {
  const auto tokens_of = [](const TensorType& type) {
    double batch = 1;
    double seq = 0;
    for (const Dim& dim : type.dims) {
      if (dim.name == "batch") batch = static_cast<double>(dim.size);
      if (dim.name == "seq") seq = static_cast<double>(dim.size);
    }
    return batch * std::max(seq, 1.0);
  };
  double tokens = 0;
  for (const Op& op : graph.ops) {
    if (op.kind == "cross_entropy")
      tokens = std::max(tokens, tokens_of(graph.value(op.outputs[0]).type));
  }
  if (tokens > 0) return tokens;
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kInput) tokens = std::max(tokens, tokens_of(value.type));
  }
  return tokens;
}

}  // namespace meshwright
