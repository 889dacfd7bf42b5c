#include "ops/ops.h"

namespace meshwright {
namespace {

// Loss per token over a vocabulary. With v split, the parts of a result are combined by the
// operator's own algorithm (maximum, sum of exponentials and target logit per token; Shoeybi et al.
// 2019, section 3): three numbers per token, never the logits.
std::string annotation(const OpContext&) { return "* v+, * -> *"; }

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  results[0].dtype = DType::kF32;
  return results;
}

// Bytes per logit inside the operator.
double inner_bytes(const OpContext& c) {
  return attr_bool(c.attrs, "fp32", true) ? 4 : dtype_bytes(c.inputs[0].dtype);
}

// Forward: cast the logits, pass for the maximum, pass for the exponentials and their sum (written
// back as softmax). Backward: softmax in, gradient in the logits' type out.
Work work(const OpContext& c) {
  const double elements = c.inputs[0].elements();
  Work work;
  work.forward_flops = Flops(5 * elements);
  work.forward_traffic = c.inputs[0].bytes() + Bytes(4 * elements * inner_bytes(c));
  work.backward_input_flops = Flops(2 * elements);
  work.backward_traffic = Bytes(elements * inner_bytes(c)) + c.inputs[0].bytes();
  work.forward_kernels = 5;
  work.backward_kernels = 2;
  return work;
}

// The softmax (fp32: Korthikanti et al. 2022, section 4.3, 4sbv); the logits themselves are
// dropped.
Saved saved(const OpContext& c) {
  return {{1}, {}, Bytes(c.inputs[0].elements() * inner_bytes(c))};
}

constexpr AttrSpec kAttrs[] = {
    {"fp32", AttrType::kBool},  // Default true: softmax in fp32 whatever the logits' type.
    {"z_loss", AttrType::kFloat, false, 0, 1},
};

std::vector<OpDef::Example> examples() {
  const TensorType logits{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"vocab", 64}}};
  const TensorType labels{DType::kI64, {{"batch", 4}, {"seq", 16}}};
  return {{{}, {logits, labels}}, {{{"fp32", false}, {"z_loss", 1e-4}}, {logits, labels}}};
}

}  // namespace

const OpDef kCrossEntropy = {
    .kind = "cross_entropy",
    .summary = "Loss per token: logits [*, vocab], labels [*] (integer) -> f32 [*]",
    .aten = "aten::cross_entropy_loss",
    .operands = {2, 2},
    .element_types = "fi",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
