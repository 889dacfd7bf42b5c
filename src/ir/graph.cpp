#include "ir/graph.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "base/error.h"

namespace meshwright {

double parameter_count(const Graph& graph) {
  double count = 0;
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kParameter) count += value.type.elements();
  }
  return count;
}

void check_graph(const Graph& graph) {
  std::unordered_set<std::string_view> value_names;
  std::unordered_set<std::string_view> op_names;
  for (const Value& value : graph.values) {
    check_tensor_type(value.type, value.name);
    if (!value_names.insert(value.name).second) {
      throw Error(fmt::format("two values are named '{}'", value.name));
    }
  }
  std::vector<bool> defined(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    defined[i] = value.kind != ValueKind::kActivation;
    if (defined[i] && value.producer.valid()) {
      throw Error("only an activation has a producer", value.name);
    }
  }
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    for (const auto& [name, attr] : op.attrs) {
      const double* number = std::get_if<double>(&attr);
      if (number != nullptr && !std::isfinite(*number)) {
        throw Error(fmt::format("attribute '{}' must be finite", name), op.name);
      }
    }
    if (!op_names.insert(op.name).second) {
      throw Error(fmt::format("two operators are named '{}'", op.name));
    }
    for (ValueId input : op.inputs) {
      if (!input.valid() || input.index() >= graph.values.size()) {
        throw Error("operand is not a value of the graph", op.name);
      }
      if (!defined[input.index()]) {
        throw Error(
            fmt::format("operand '{}' is used before it is computed", graph.value(input).name),
            op.name);
      }
    }
    for (ValueId output : op.outputs) {
      if (!output.valid() || output.index() >= graph.values.size()) {
        throw Error("result is not a value of the graph", op.name);
      }
      if (defined[output.index()]) {
        throw Error(fmt::format("value '{}' is computed twice", graph.value(output).name), op.name);
      }
      defined[output.index()] = true;
      if (graph.value(output).producer.index() != o) {
        throw Error(fmt::format("value '{}' names another producer", graph.value(output).name),
                    op.name);
      }
    }
  }
  for (std::size_t i = 0; i < defined.size(); ++i) {
    if (!defined[i]) throw Error("activation has no producer", graph.values[i].name);
  }
}

}  // namespace meshwright
