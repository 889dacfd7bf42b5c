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
};

struct Op {
  std::string kind;  ///< Name of its OpDef: "linear".
  std::string name;  ///< Module path: "layers.17.attn.q_proj".
  Attrs attrs;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
};

/// The single-device program of one forward pass over the *global* batch: operators and values in
/// topological order. The backward pass and the optimizer follow from it.
struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;

  const Value& value(ValueId id) const { return values[id.index()]; }
  const Op& op(OpId id) const { return ops[id.index()]; }
};

/// Total elements of all parameters; a tied parameter counts once.
double parameter_count(const Graph& graph);

/// Throws Error unless every operand is defined before its use, every activation has one producer,
/// names are unique and types are legal.
void check_graph(const Graph& graph);

/// One line per value and operator; parse_graph(print_graph(g)) == g. Grammar in
/// docs/graph_format.md.
std::string print_graph(const Graph& graph);
/// Throws Error with `source:line:column`.
Graph parse_graph(std::string_view text, std::string_view source);

}  // namespace meshwright
