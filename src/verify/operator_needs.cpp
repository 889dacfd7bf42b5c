#include "verify/operator_needs.h"

#include <algorithm>

namespace meshwright {
namespace {

bool is_summand(const Op& op, std::size_t operand) {
  const std::string& kind = op.kind;
  if (kind == "add" || kind == "concat" || kind == "relative_bias" || kind == "embedding") {
    return true;
  }
  const bool has_bias = kind == "linear" || kind == "conv2d" || kind == "grouped_linear" ||
                        kind == "moe_router" || kind == "layer_norm";
  return has_bias && operand == 2;
}

// Whether the operator is a sum of products in which an operand occurs once.
bool is_product(const Op& op, const Rule& rule) {
  const bool sums = std::any_of(rule.factors.begin(), rule.factors.end(),
                                [](const Factor& f) { return f.kind == FactorKind::kSum; });
  return (sums && op.kind != "cross_entropy") || op.kind == "mul" || op.kind == "moe_combine";
}

}  // namespace

GradientNeeds gradient_needs(const Graph& graph, const Op& op, const Rule& rule,
                             const OpContext& context, std::size_t operand) {
  const Saved saved = saved_of(find_op(op.kind), context);
  const bool product = is_product(op, rule);
  GradientNeeds needs;
  for (std::size_t m = 0; m < op.inputs.size(); ++m) {
    const ValueKind kind = graph.value(op.inputs[m]).kind;
    const bool constant = kind == ValueKind::kParameter || kind == ValueKind::kBuffer;
    const bool kept = std::find(saved.inputs.begin(), saved.inputs.end(), static_cast<int>(m)) !=
                      saved.inputs.end();
    if (m == operand && (product || constant)) continue;
    if (kept || (constant && !is_summand(op, m))) needs.operands.push_back(static_cast<int>(m));
  }
  needs.results = saved.outputs;
  return needs;
}

}  // namespace meshwright
