#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "import/onnx/proto.h"

namespace meshwright::onnx {

/// What is known of one value of the model.
struct Fact {
  int type = kUnknownType;
  std::vector<std::int64_t> dims;  ///< 0 is legal: an empty tensor.
  std::shared_ptr<const Known> known;
  bool constant = false;  ///< The same at every step, and trained by nobody.
  bool tensor = true;     ///< False for sequences, maps and optionals: their shape is unknown.
  bool stated = false;    ///< The shape is what the file states; what is computed is not known.

  double elements() const;
};
using Facts = std::unordered_map<std::string, Fact>;

/// Largest tensor, as elements, and largest dimension, as everywhere in Meshwright.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;

/// A shape that only data decide; what the file states may stand in for it.
class DependsOnData : public Error {
 public:
  using Error::Error;
};

/// An operator as shape inference sees it: attributes and what is known of its operands.
class NodeView {
 public:
  NodeView(const Node& n, std::int64_t version, std::vector<const Fact*> inputs)
      : node(n), opset(version), inputs_(std::move(inputs)) {}

  const Node& node;
  const std::int64_t opset;
  /// The batch that the model was exported for and the one it has instead; equal when it keeps it.
  std::int64_t exported_batch = 1;
  std::int64_t batch = 1;

  std::size_t count() const { return inputs_.size(); }
  bool has(std::size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  /// Throws Error when the operand is left out.
  const Fact& in(std::size_t i) const;
  const std::vector<std::int64_t>& dims(std::size_t i) const { return in(i).dims; }
  std::int64_t rank(std::size_t i) const { return static_cast<std::int64_t>(in(i).dims.size()); }
  /// Values of an integer operand, when they are known.
  std::optional<std::vector<std::int64_t>> ints(std::size_t i) const;
  /// The same; throws Error when they depend on data.
  std::vector<std::int64_t> need_ints(std::size_t i, std::string_view what) const;

  bool has_attr(std::string_view name) const { return node.attribute(name) != nullptr; }
  std::int64_t attr(std::string_view name, std::int64_t fallback) const;
  double attr(std::string_view name, double fallback) const;
  std::string attr(std::string_view name, const char* fallback) const;
  std::optional<std::vector<std::int64_t>> attr_ints(std::string_view name) const;
  /// An attribute of older opsets, an operand of newer ones.
  std::optional<std::vector<std::int64_t>> ints_of(std::string_view attribute,
                                                   std::size_t operand) const;

 private:
  std::vector<const Fact*> inputs_;
};

/// Counts from the end when negative. Throws Error outside of -rank..rank-1.
std::size_t axis_in(std::int64_t axis, std::int64_t rank);
/// Throws Error when the product is larger than any tensor may be.
std::int64_t times(std::int64_t a, std::int64_t b);
std::int64_t product(std::span<const std::int64_t> dims);
/// NumPy's rule. Throws Error with both shapes.
std::vector<std::int64_t> broadcast(const std::vector<std::int64_t>& a,
                                    const std::vector<std::int64_t>& b);
/// "[2, 3]".
std::string shape_text(std::span<const std::int64_t> dims);

/// Types and shapes of an operator's results. Throws Error without the operator's name.
using InferFn = std::vector<Fact> (*)(const NodeView&);
struct InferRow {
  std::string_view op;
  InferFn infer;
};
// One table per family, one file each: infer_<family>.cpp.
std::span<const InferRow> elementwise_rows();
std::span<const InferRow> shape_rows();
std::span<const InferRow> index_rows();
std::span<const InferRow> reduce_rows();
std::span<const InferRow> product_rows();
std::span<const InferRow> window_rows();
std::span<const InferRow> network_rows();
std::span<const InferRow> classifier_rows();  ///< Of the domain ai.onnx.ml.

/// The row of an operator, null when there is none.
const InferRow* find_row(const Node& node);

/// Values of the results of an operator whose operands are all known; false when this operator is
/// not evaluated. `results` come with their types and shapes.
bool evaluate(const NodeView& view, std::vector<Fact>& results);

/// Sizes for what the file leaves open.
struct Binding {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  bool replace_static_batch = false;  ///< Also where inputs state a size.
  std::int64_t other = 64;            ///< Of unknown dimensions that are neither.
  bool masks_are_set =
      false;  ///< Inputs named masks hold ones, so that what they lead to has values.
};

/// What one dimension of a graph input ranges over, by its place and name.
enum class InputRole { kStatic, kBatch, kSeq, kOther };
InputRole input_role(const ValueInfo& info, std::size_t dim);

/// The inputs of a graph that no initializer fills.
std::vector<const ValueInfo*> fed_inputs(const Subgraph& graph);
/// The size that stands first in every fed input of rank 2 or more and is stated; 0 when there is
/// none.
std::int64_t static_batch(const Subgraph& graph);

struct Inferred {
  Facts facts;
  std::vector<std::size_t> order;   ///< Nodes, operands before users.
  std::vector<std::string> bounds;  ///< Operators whose result is taken at its largest.
  /// Shapes that the file states, those with a size for each dimension.
  std::unordered_map<std::string, std::vector<std::int64_t>> stated;
};
/// Types and shapes of every value of the main graph. Throws Error that names the operator: a
/// cycle, a name that nobody defines, shapes that do not fit, a size that only data decide.
Inferred infer(const ModelFile& model, const Binding& binding);

/// Replaces calls of the model's own functions by their nodes. Throws Error for functions that call
/// each other deeper than 16.
void inline_functions(ModelFile& model);

/// Order in which operands come before users, as close to the file's order as they allow. Throws
/// Error for a cycle, a value that is computed twice, and an operand that nobody computes, here or
/// (as `outer` tells) in an enclosing graph.
std::vector<std::size_t> topological_order(const Subgraph& graph,
                                           const std::function<bool(const std::string&)>& outer);

/// "name (Op)" for errors.
std::string node_label(const Node& node);

}  // namespace meshwright::onnx
