#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ops/gradient_flow.h"

// Private to the verifier.

namespace meshwright {

/// One term of a sum as a device holds it. A gradient is a sum over the operands that read the
/// value; each such term is in turn a sum over the factors that the operand lacks (nnScaler's
/// gradient rule), of which the device holds the part that its coordinates along `open` select. No
/// open axis = the term is whole.
struct Term {
  std::int64_t source = 0;
  std::uint32_t open = 0;
  friend bool operator==(const Term&, const Term&) = default;
};
using Terms = std::vector<Term>;

/// The only term of a value that is no gradient.
inline constexpr std::int64_t kValueTerm = -1;
/// What consumers outside of the segment owe.
inline constexpr std::int64_t kOutsideTerm = -2;
constexpr std::int64_t operand_term(int op, std::size_t operand) {
  return std::int64_t{op} * 256 + static_cast<std::int64_t>(operand);
}

/// Who reads each value, and who owes it a gradient.
class GraphUses {
 public:
  explicit GraphUses(const Graph& graph);

  struct Use {
    int op = 0;
    int operand = 0;
  };
  std::span<const Use> of(ValueId id) const {
    return std::span(uses_).subspan(first_[id.index()],
                                    first_[id.index() + 1] - first_[id.index()]);
  }
  /// Whether the backward pass of this operator gives this operand a gradient.
  bool owes(int op, std::size_t operand) const;
  bool owes(const Use& use) const { return owes(use.op, static_cast<std::size_t>(use.operand)); }
  /// Whether the operator has a backward pass.
  bool differentiates(int op) const { return differentiates_[static_cast<std::size_t>(op)]; }
  /// Whether the value has a gradient, owed by some operator or (a loss) given.
  bool requires_gradient(ValueId id) const { return requires_[id.index()]; }

 private:
  const Graph& graph_;
  GradientFlow flow_;
  std::vector<bool> requires_, differentiates_;
  std::vector<Use> uses_;
  std::vector<std::uint32_t> first_;
};

}  // namespace meshwright
