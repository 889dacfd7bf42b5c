#include "ops/op_def.h"

#include <algorithm>

namespace meshwright {

Rule rule_of(const OpDef& def, const OpContext& context) {
  int ranks[64];
  const std::size_t count = std::min<std::size_t>(context.inputs.size(), 64);
  for (std::size_t i = 0; i < count; ++i) ranks[i] = context.inputs[i].rank();
  Rule rule = parse_rule(def.annotation(context), std::span(ranks, count));
  if (def.factor_sizes != nullptr) {
    bind_rule(rule, context.inputs, def.factor_sizes(context));
  } else {
    bind_rule(rule, context.inputs);
  }
  return rule;
}

std::vector<TensorType> infer(const OpDef& def, const OpContext& context) {
  const Rule rule = rule_of(def, context);
  return def.infer != nullptr ? def.infer(context, rule) : infer_from_rule(rule, context.inputs);
}

Bytes operand_traffic(const OpContext& context) {
  Bytes total;
  for (const TensorType& t : context.inputs) total += t.bytes();
  for (const TensorType& t : context.outputs) total += t.bytes();
  return total;
}

Work memory_work(const OpContext& context, double flops_per_element, double backward_ratio) {
  Work work;
  const double elements = context.outputs.empty() ? 0 : context.outputs[0].elements();
  work.forward_flops = Flops(flops_per_element * elements);
  work.forward_traffic = operand_traffic(context);
  work.backward_input_flops = Flops(2 * flops_per_element * elements);
  work.backward_traffic = work.forward_traffic * backward_ratio;
  return work;
}

Work matmul_work(const OpContext& context, MatmulShape shape, bool b_is_parameter) {
  Work work;
  work.kernel = KernelClass::kMatmul;
  work.matmul = shape;
  work.forward_flops = Flops(2 * shape.batch * shape.m * shape.n * shape.k);
  work.forward_traffic = operand_traffic(context);
  work.backward_input_flops = work.forward_flops;
  if (b_is_parameter)
    work.backward_weight_flops = work.forward_flops;
  else
    work.backward_input_flops *= 2;
  work.backward_traffic = work.forward_traffic * 2;
  work.backward_kernels = 2;
  return work;
}

Work work_of(const OpDef& def, const OpContext& context) {
  if (def.work != nullptr) return def.work(context);
  const Rule rule = rule_of(def, context);
  double product = 2;
  bool contraction = false;
  for (const Factor& f : rule.factors) {
    product *= static_cast<double>(f.size);
    contraction |= f.kind == FactorKind::kSum;
  }
  if (!contraction) return memory_work(context);
  const double out = context.outputs.empty() ? 1 : context.outputs[0].elements();
  return matmul_work(context, {1, out, 1, product / 2 / out}, false);
}

Saved saved_of(const OpDef& def, const OpContext& context) {
  if (def.saved != nullptr) return def.saved(context);
  Saved saved;
  for (std::size_t i = 0; i < context.inputs.size(); ++i) {
    if (is_floating(context.inputs[i].dtype)) saved.inputs.push_back(static_cast<int>(i));
  }
  return saved;
}

}  // namespace meshwright
