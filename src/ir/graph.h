#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"
#include "ir/attrs.h"
#include "ir/tensor_type.h"

namespace meshwright {

enum class ValueKind {
  kInput,       ///< Fed per step: token ids, images, labels.
  kParameter,   ///< Trained; has a gradient and optimizer state.
  kBuffer,      ///< Constant per step: rotary tables, masks.
  kActivation,  ///< Result of an operator.
};

struct Value {
  std::string name;  ///< Module path: "layers.17.attn.q_proj.weight".
  TensorType type;
  ValueKind kind = ValueKind::kActivation;
  OpId producer;  ///< Valid for activations only.
  friend bool operator==(const Value&, const Value&) = default;
};

struct Op {
  std::string kind;  ///< Name of its OpDef: "linear".
  std::string name;  ///< Module path: "layers.17.attn.q_proj".
  Attrs attrs;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  friend bool operator==(const Op&, const Op&) = default;
};

/// The single-device program of one forward pass over the *global* batch: operators and values in
/// topological order. The backward pass and the optimizer follow from it.
struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;

  friend bool operator==(const Graph&, const Graph&) = default;

  const Value& value(ValueId id) const { return values[id.index()]; }
  const Op& op(OpId id) const { return ops[id.index()]; }
};

/// Total elements of all parameters; a tied parameter counts once.
double parameter_count(const Graph& graph);

/// Throws Error unless every operand is defined before its use, every activation has one producer
/// and names it, names are unique, types are legal and attributes are finite.
void check_graph(const Graph& graph);

/// One line per value and operator; parse_graph(print_graph(g), …) == g for every graph that
/// check_graph accepts. Grammar in docs/graph_format.md.
std::string print_graph(const Graph& graph);
/// A hash of that text, 16 hexadecimal digits: whether a plan was made for this graph.
std::string graph_fingerprint(const Graph& graph);
/// Parses and checks a graph (not its operators: see check_ops). Throws Error whose place is
/// `source:line:column`.
Graph parse_graph(std::string_view text, std::string_view source);

}  // namespace meshwright
