#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "import/import.h"
#include "import/onnx/infer.h"
#include "ops/builder.h"

namespace meshwright::onnx {

/// How a dimension of a value changes with the model's inputs, found by inferring the model at
/// several sizes.
struct DimRole {
  enum class Kind { kFixed, kBatch, kSeq } kind = Kind::kFixed;
  std::int64_t unit = 1;  ///< Of kBatch: elements per sample.
};
using Roles = std::unordered_map<std::string, std::vector<DimRole>>;

/// What the graph is built from.
struct Sources {
  const ModelFile& model;
  const Inferred& inferred;
  const Roles& roles;
  const ImportOptions& options;
  /// Names for dimensions of some values ("heads", "ffn"), by value; "" leaves one to the operator.
  const std::unordered_map<std::string, std::vector<Dim>>& names;
};

/// Turns nodes into operators of a Graph, one at a time. The functions of emit_table() call it.
class Emitter {
 public:
  explicit Emitter(const Sources& sources);

  /// Emits all nodes; throws Error that names the node.
  Model run();

  // What emitting functions need.
  const Node& node() const { return *node_; }
  const NodeView& view() const { return *view_; }
  const Fact& fact(const std::string& name) const;
  const ImportOptions& options() const { return sources_.options; }
  bool has(std::size_t i) const { return view_->has(i); }
  /// Whether some node or output reads result `k` of the node.
  bool is_used(std::size_t k) const;
  bool is_parameter(std::size_t i) const;
  bool is_floating(std::size_t i) const { return is_floating_type(view_->in(i).type); }
  /// Whether dimension `d` of operand `i` grows with the batch.
  bool is_batch(std::size_t i, std::size_t d) const;
  DimRole role(const std::string& name, std::size_t d) const;

  /// Operand `i` as a value of the graph.
  ValueId in(std::size_t i);
  ValueId value(const std::string& name);
  const TensorType& type(ValueId id) const { return builder_.type(id); }
  /// Operand `i` as a vector over dimensions named like `like`.
  ValueId vector(std::size_t i, Dim like);
  /// Operand `i`, a matrix parameter, as [rows, columns]; `transposed` when the model has it as
  /// [columns, rows].
  ValueId matrix(std::size_t i, bool transposed, const Dim& rows, const Dim& columns);
  /// A parameter with named dimensions, unless it has been used before.
  ValueId parameter(std::size_t i, std::vector<Dim> dims);
  bool is_matrix_parameter(std::size_t i) const;

  /// Adds an operator named after the node.
  ValueId op(std::string_view kind, std::vector<ValueId> inputs, Attrs attrs = {});
  std::vector<ValueId> ops(std::string_view kind, std::vector<ValueId> inputs, Attrs attrs);
  ValueId pointwise(std::string_view fn, std::vector<ValueId> inputs);
  /// A view of `x` under another shape; `like` names the value whose dimensions it has.
  ValueId reshape(ValueId x, const std::vector<std::int64_t>& sizes, const std::string& like);
  ValueId transpose(ValueId x, const std::vector<std::int64_t>& perm);
  ValueId rename(ValueId x, std::size_t dim, const std::string& name);
  /// `x` stretched by NumPy's rule.
  ValueId stretch(ValueId x, const std::vector<std::int64_t>& sizes, const std::string& like);

  /// States that result `k` of the node is `id`.
  void result(std::size_t k, ValueId id);
  void result(ValueId id) { result(0, id); }
  /// The name of a value's dimension when no operand gives it one.
  Dim dim_of(const std::string& name, std::size_t d) const;
  /// Dimension `d` of a value named by Sources::names, if any.
  std::optional<Dim> hint(const std::string& name, std::size_t d) const;

  /// One operator of which only the results are known.
  void opaque();
  /// Counts something for the notes: "2 nodes …".
  void count(const std::string& what) { ++counts_[what]; }

 private:
  void emit_node(const Node& node);
  void emit_inputs();
  bool is_folded(const Node& node) const;
  std::string unique(std::string name);
  std::string op_name();
  TensorType type_of(const std::string& name, const Fact& fact) const;
  DType dtype_of(int type) const;
  std::vector<ValueId> without_clashes(std::string_view kind, std::vector<ValueId> inputs,
                                       const Attrs& attrs);
  Model finish();

  const Sources& sources_;
  GraphBuilder builder_;
  std::unordered_map<std::string, ValueId> values_;
  std::unordered_map<std::string, const Tensor*> initializers_;
  std::unordered_map<std::string, std::string> transposed_;  // Value -> the parameter it is of.
  std::set<std::string> stored_transposed_, statistics_, used_, names_;
  const Node* node_ = nullptr;
  const NodeView* view_ = nullptr;
  int made_ = 0;  // Operators of the current node.
  std::map<std::string, int> counts_, opaque_;
};

using EmitFn = void (*)(Emitter&);
struct EmitRow {
  std::string_view op;
  EmitFn emit;
};
std::span<const EmitRow> elementwise_emitters();
std::span<const EmitRow> shape_emitters();
std::span<const EmitRow> product_emitters();
std::span<const EmitRow> window_emitters();
std::span<const EmitRow> norm_emitters();
std::span<const EmitRow> fused_emitters();  ///< Of the nodes that fusion makes.

/// "/layers.0/attn::MatMul" -> "layers.0.attn.MatMul": a module path.
std::string module_path(std::string_view name);

}  // namespace meshwright::onnx
