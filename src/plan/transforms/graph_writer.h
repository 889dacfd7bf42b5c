#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/op_def.h"

// Private to the transforms: a graph written anew, in which names are given and types inferred.

namespace meshwright {

class GraphWriter {
 public:
  explicit GraphWriter(const Graph& source) { graph_.name = source.name; }

  const TensorType& type(ValueId id) const { return graph_.value(id).type; }

  /// An input, parameter or buffer.
  ValueId add_value(std::string name, TensorType type, ValueKind kind);
  /// One value name per result. Throws Error naming the operator when operands do not fit.
  std::vector<ValueId> add_op(std::string_view kind, std::string name, std::vector<ValueId> inputs,
                              Attrs attrs, std::vector<std::string> results);
  /// The same for operators whose one result is named like them.
  ValueId add_op(std::string_view kind, const std::string& name, std::vector<ValueId> inputs,
                 Attrs attrs = {});
  /// [start, start + length) of a dim.
  ValueId slice(const std::string& name, ValueId x, std::size_t dim, std::int64_t start,
                std::int64_t length);
  ValueId concat(const std::string& name, std::vector<ValueId> parts, std::size_t dim);

  /// Checks and hands over the graph.
  Graph finish();

 private:
  Graph graph_;
};

/// The bound rule of an operator of the graph; errors name it.
Rule rule_in(const Graph& graph, const Op& op);

}  // namespace meshwright
