#include <algorithm>
#include <limits>

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

// Every part returns its share, so that the sum over parts is the loss: part 0 the log-sum-exp,
// each its own labels' logits. What the group knows is a constant for the backward pass; the
// derivative of the log-sum-exp, the softmax, comes from a term of value zero.
Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::vector<std::int64_t> last = {-1};
  const Interval words = c.input_boxes[0].back();
  Slot logits = attr_bool(c.attrs, "fp32", true) ? cast(k, {0}, DType::kF32) : Slot{0};
  if (words.empty()) {  // A word that cannot be, since none has no maximum.
    const std::vector<std::int64_t> one = {0, 1};
    logits =
        k.call("aten::constant_pad_nd", {logits, one, -std::numeric_limits<double>::infinity()});
  }
  const auto unary = [&](std::string_view name, Slot x) { return k.call(name, {x}); };
  const auto binary = [&](std::string_view name, Slot x, Slot y) { return k.call(name, {x, y}); };
  const Slot highest =
      unary("group::max", k.call("aten::amax", {unary("aten::detach", logits), last, true}));
  const Slot exponential = unary("aten::exp", binary("aten::sub.Tensor", logits, highest));
  const Slot own_sum = k.call("aten::sum.dim_IntList", {exponential, last});
  const Slot sum = unary("group::sum", own_sum);
  const Slot lse = binary("aten::add.Tensor", unary("aten::log", sum),
                          k.call("aten::squeeze.dim", {highest, std::int64_t{-1}}));

  const Slot share = binary("aten::div.Tensor", own_sum, sum);
  Slot loss = binary("aten::sub.Tensor", share, unary("aten::detach", share));
  const double z = attr_float(c.attrs, "z_loss", 0);
  if (z > 0) {  // z lse^2 and its derivative, 2 z lse softmax.
    const Slot slope = k.call("aten::add.Scalar", {k.call("aten::mul.Scalar", {lse, 2 * z}), 1.0});
    loss = binary("aten::mul.Tensor", loss, slope);
  }
  if (c.part == 0) {
    loss = binary("aten::add.Tensor", loss, lse);
    if (z > 0) {
      const Slot square = k.call("aten::mul.Scalar", {unary("aten::square", lse), z});
      loss = binary("aten::add.Tensor", loss, square);
    }
  }

  const Slot labels = cast(k, {1}, DType::kI64);
  const Slot local = k.call("aten::sub.Scalar", {labels, words.begin});
  const std::int64_t most = std::max<std::int64_t>(words.size() - 1, 0);
  const Slot near = k.call("aten::clamp", {local, std::int64_t{0}, most});
  const Slot column = k.call("aten::unsqueeze", {near, std::int64_t{-1}});
  const Slot target =
      k.call("aten::squeeze.dim",
             {k.call("aten::gather", {logits, std::int64_t{-1}, column}), std::int64_t{-1}});
  const Slot elsewhere = words.empty() ? k.call("aten::ge.Scalar", {near, std::int64_t{0}})
                                       : binary("aten::ne.Tensor", local, near);
  loss = binary("aten::sub.Tensor", loss,
                k.call("aten::masked_fill.Scalar", {target, elsewhere, 0.0}));
  // Labels that are no word (ignored tokens) have no loss.
  const Slot no_word =
      binary("aten::logical_or", k.call("aten::lt.Scalar", {labels, std::int64_t{0}}),
             k.call("aten::ge.Scalar", {labels, c.inputs[0].dims.back().size}));
  return k.finish({k.call("aten::masked_fill.Scalar", {loss, no_word, 0.0})});
}

}  // namespace

const OpDef kCrossEntropy = {
    .kind = "cross_entropy",
    .summary = "Loss per token: logits [*, vocab], labels [*] (integer) -> f32 [*]",
    .aten = "",
    .operands = {2, 2},
    .element_types = "fi",
    .attrs = kAttrs,
    .own_sums = 2,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
