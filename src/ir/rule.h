#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/tensor_type.h"

namespace meshwright {

/// How an operator may be split along one of its factors (nnScaler's dim annotations, extended).
enum class FactorKind {
  kSpatial,  ///< Splits every operand that has it; results split too.
  kSum,      ///< "+": contracted; splitting it makes each result a partial sum.
  kFrozen,   ///< "^": not split, except by an operator-specific algorithm (ring attention).
  kHalo,     ///< "~": spatial, but neighbouring parts of the input overlap (convolution windows).
};

struct Factor {
  std::string id;  ///< Its letter in the annotation: "k".
  FactorKind kind = FactorKind::kSpatial;
  std::int64_t size = 0;  ///< Elements; 0 until bound to operand types.
  std::string label;      ///< Name of the dimension it ranges over: "hidden".
  std::int64_t unit = 1;  ///< Splits fall on multiples of this many elements.
};

/// One tensor dimension: a product of factors, outermost first ("(h d)"); no factor = a fixed
/// decimal.
struct RuleDim {
  std::vector<int> factors;
  std::int64_t constant = 1;
  bool scaled = false;  ///< "'": split like its factor, but of a size of its own.
  friend bool operator==(const RuleDim&, const RuleDim&) = default;
};

struct RuleTensor {
  bool opaque = false;  ///< "?": not split, whatever its shape.
  std::vector<RuleDim> dims;
};

/// Factors tied to the dimensions of an operator's operands and results.
struct Rule {
  std::vector<Factor> factors;
  std::vector<RuleTensor> inputs;
  std::vector<RuleTensor> outputs;
};

/// Parses an annotation such as "* k+, n k+ -> * n":
///   op := tensors "->" tensors      tensors := tensor ("," tensor)*      tensor := dim* | "?"
///   dim := id mark ["'"] | "(" (id mark)+ ")" | decimal  mark := "" | "+" | "^" | "~"
/// A primed dimension ("s'") is split like its factor but has a size of its own, which the
/// operator's inference gives (tokens per expert, rows that a convolution leaves).
/// "*" stands for as many fresh factors as the first operand that has it needs to reach its rank
/// (all "*" of an annotation have one rank); `input_ranks` gives the ranks. Throws Error naming the
/// column.
Rule parse_rule(std::string_view annotation, std::span<const int> input_ranks);

/// Sets size, label and unit of every factor from operand types; `sizes` gives inner sizes of
/// groups by factor id where the operands alone do not. Throws Error when dimensions that share a
/// factor disagree.
struct FactorSize {
  std::string id;
  std::int64_t size;
};
void bind_rule(Rule& rule, std::span<const TensorType> inputs,
               std::span<const FactorSize> sizes = {});

/// Result types that follow from a bound rule. A dim that is the same group of factors as a dim of
/// an operand keeps its name and unit; others are named after their leading factor's label. Element
/// type of the first floating-point operand. Primed dims get the size of their factor.
std::vector<TensorType> infer_from_rule(const Rule& rule, std::span<const TensorType> inputs);

/// The annotation text of a rule ("*" expanded); parse_rule(to_string(r)) is r up to binding.
std::string to_string(const Rule& rule);

}  // namespace meshwright
