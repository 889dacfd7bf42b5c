#include "ops/ops.h"

namespace meshwright {
namespace {

// Optimizer steps. They stand in no model graph; the planner prices them per parameter. Every
// operand is read and every result written once (fused kernels), and nothing has a backward pass.

Work update_work(const OpContext& c, double flops_per_element) {
  Work work;
  work.forward_flops = Flops(flops_per_element * c.inputs[0].elements());
  work.forward_traffic = operand_traffic(c);
  work.backward_kernels = 0;
  return work;
}

Saved nothing(const OpContext&) { return {}; }

// All operands but the gradient are updated in place and keep their types.
std::vector<TensorType> updated(const OpContext& c, const Rule&) {
  std::vector<TensorType> results(c.inputs.begin(), c.inputs.end());
  results.erase(results.begin() + 1);
  return results;
}

std::string adamw_annotation(const OpContext& c) {
  return c.inputs.size() == 5 ? "*, *, *, *, * -> *, *, *, *" : "*, *, *, * -> *, *, *";
}
Work adamw_work(const OpContext& c) { return update_work(c, 14); }

std::string sgd_annotation(const OpContext& c) {
  return c.inputs.size() == 3 ? "*, *, * -> *, *" : "*, * -> *";
}
Work sgd_work(const OpContext& c) { return update_work(c, c.inputs.size() == 3 ? 4 : 2); }

TensorType matrix(DType dtype) { return {dtype, {{"ffn", 64}, {"hidden", 32}}}; }

std::vector<OpDef::Example> adamw_examples() {
  const TensorType half = matrix(DType::kBf16);
  const TensorType full = matrix(DType::kF32);
  return {{{}, {half, full, full, full, full}}, {{}, {full, full, full, full}}};
}
std::vector<OpDef::Example> sgd_examples() {
  const TensorType half = matrix(DType::kBf16);
  const TensorType full = matrix(DType::kF32);
  return {{{}, {full, full}}, {{}, {half, half, full}}};
}

}  // namespace

const OpDef kAdamw = {
    .kind = "adamw",
    .summary = "param, grad, m, v (fp32 master) -> param, m, v (master)",
    .aten = "",
    .operands = {4, 5},
    .annotation = adamw_annotation,
    .infer = updated,
    .work = adamw_work,
    .saved = nothing,
    .examples = adamw_examples,
};

const OpDef kSgd = {
    .kind = "sgd",
    .summary = "param, grad (momentum) -> param (momentum)",
    .aten = "",
    .operands = {2, 3},
    .annotation = sgd_annotation,
    .infer = updated,
    .work = sgd_work,
    .saved = nothing,
    .examples = sgd_examples,
};

}  // namespace meshwright
