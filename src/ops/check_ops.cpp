#include "ops/check_ops.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

void check_op(const Graph& graph, const Op& op) {
  std::vector<TensorType> operands;
  operands.reserve(op.inputs.size());
  for (const ValueId id : op.inputs) operands.push_back(graph.value(id).type);
  const std::vector<TensorType> results = infer(find_op(op.kind), {op.attrs, operands, {}});
  if (results.size() != op.outputs.size()) {
    throw Error(fmt::format("gives {} results, not {}", results.size(), op.outputs.size()));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Value& value = graph.value(op.outputs[i]);
    if (value.type == results[i]) continue;
    throw Error(fmt::format("result '{}' is declared {}, but the operands give {}", value.name,
                            to_string(value.type), to_string(results[i])));
  }
}

}  // namespace

void check_ops(const Graph& graph) {
  for (const Op& op : graph.ops) {
    try {
      check_op(graph, op);
    } catch (const Error& e) {
      throw e.within(fmt::format("{} ({})", op.name, op.kind));
    }
  }
}

}  // namespace meshwright
