#include "plan/transforms/graph_writer.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {
namespace {

// As in GraphBuilder: a transform multiplies operators, and its input may be large already.
constexpr std::size_t kMaxValues = 20'000'000;

}  // namespace

ValueId GraphWriter::add_value(std::string name, TensorType type, ValueKind kind) {
  if (graph_.values.size() >= kMaxValues) {
    throw Error("the transformed model has too many values", std::move(name));
  }
  graph_.values.push_back({std::move(name), std::move(type), kind, OpId()});
  return ValueId(static_cast<std::int64_t>(graph_.values.size()) - 1);
}

std::vector<ValueId> GraphWriter::add_op(std::string_view kind, std::string name,
                                         std::vector<ValueId> inputs, Attrs attrs,
                                         std::vector<std::string> results) {
  Op op{std::string(kind), std::move(name), std::move(attrs), std::move(inputs), {}};
  std::vector<TensorType> types;
  for (const ValueId id : op.inputs) types.push_back(type(id));
  std::vector<TensorType> inferred;
  try {
    inferred = infer(find_op(kind), {op.attrs, types, {}});
  } catch (const Error& e) {
    throw e.within(fmt::format("{} ({})", op.name, kind));
  }
  MW_CHECK(inferred.size() == results.size(), fmt::format("{} has other results", op.name));
  const OpId id(static_cast<std::int64_t>(graph_.ops.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    op.outputs.push_back(
        add_value(std::move(results[i]), std::move(inferred[i]), ValueKind::kActivation));
    graph_.values.back().producer = id;
  }
  graph_.ops.push_back(std::move(op));
  return graph_.ops.back().outputs;
}

ValueId GraphWriter::add_op(std::string_view kind, const std::string& name,
                            std::vector<ValueId> inputs, Attrs attrs) {
  return add_op(kind, name, std::move(inputs), std::move(attrs), {name})[0];
}

ValueId GraphWriter::slice(const std::string& name, ValueId x, std::size_t dim, std::int64_t start,
                           std::int64_t length) {
  return add_op("slice", name, {x},
                {{"dim", static_cast<std::int64_t>(dim)}, {"start", start}, {"length", length}});
}

ValueId GraphWriter::concat(const std::string& name, std::vector<ValueId> parts, std::size_t dim) {
  return add_op("concat", name, std::move(parts), {{"dim", static_cast<std::int64_t>(dim)}});
}

Graph GraphWriter::finish() {
  check_graph(graph_);
  return std::move(graph_);
}

Rule rule_in(const Graph& graph, const Op& op) {
  std::vector<TensorType> types;
  for (const ValueId id : op.inputs) types.push_back(graph.value(id).type);
  try {
    return rule_of(find_op(op.kind), {op.attrs, types, {}});
  } catch (const Error& e) {
    throw e.within(fmt::format("{} ({})", op.name, op.kind));
  }
}

}  // namespace meshwright
