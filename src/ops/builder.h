#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace meshwright {

/// Builds a Graph operator by operator; result types are inferred by the operators' definitions.
/// Names are relative to the current scope (module path).
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string graph_name, DType dtype = DType::kBf16);

  /// Module path prefix while alive: `auto s = b.scope("layers.3.attn");`
  class Scope {
   public:
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    friend class GraphBuilder;
    Scope(GraphBuilder& builder, std::size_t previous) : builder_(builder), previous_(previous) {}
    GraphBuilder& builder_;
    std::size_t previous_;
  };
  [[nodiscard]] Scope scope(std::string_view name);

  DType dtype() const { return dtype_; }
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }

  ValueId input(std::string_view name, TensorType type);
  ValueId parameter(std::string_view name, std::vector<Dim> dims);
  ValueId buffer(std::string_view name, TensorType type);

  /// Adds an operator; throws Error that names it when its rule does not fit the operands.
  std::vector<ValueId> add(std::string_view kind, std::string_view name,
                           std::vector<ValueId> inputs, Attrs attrs = {});
  /// The same for operators with one result.
  ValueId op(std::string_view kind, std::string_view name, std::vector<ValueId> inputs,
             Attrs attrs = {});

  /// linear over the last dim of `x` to `out`, with parameters `<name>.weight` (and `<name>.bias`).
  ValueId linear(std::string_view name, ValueId x, Dim out, bool bias);
  /// rms_norm / layer_norm over the last dim with parameters `<name>.weight` (and `<name>.bias`).
  ValueId rms_norm(std::string_view name, ValueId x);
  ValueId layer_norm(std::string_view name, ValueId x, bool bias = true);

  /// Checks and hands over the graph.
  Graph finish();

 private:
  ValueId add_value(std::string_view name, TensorType type, ValueKind kind);
  std::string path(std::string_view name) const;

  Graph graph_;
  DType dtype_;
  std::string prefix_;
};

}  // namespace meshwright
