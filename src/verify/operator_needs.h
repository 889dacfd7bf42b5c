#pragma once

#include <vector>

#include "ops/op_def.h"

namespace meshwright {

/// What the gradient of one operand is computed from besides the gradients of the results: values
/// that autograd keeps (OpDef::saved), and parameters and constants that it need not keep. Biases
/// and other summands are needed by no gradient, factors of a product not by their own.
struct GradientNeeds {
  std::vector<int> operands;
  std::vector<int> results;
};
GradientNeeds gradient_needs(const Graph& graph, const Op& op, const Rule& rule,
                             const OpContext& context, std::size_t operand);

}  // namespace meshwright
