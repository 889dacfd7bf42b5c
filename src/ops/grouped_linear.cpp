#include "ops/ops.h"

namespace meshwright {
namespace {

// One linear per expert, run as one kernel: a batch of products with a row per token of the expert.
std::string annotation(const OpContext& c) {
  return c.inputs.size() == 3 ? "e b s k+, e n k+, e n -> e b s n" : "e b s k+, e n k+ -> e b s n";
}

Work work(const OpContext& c) {
  const std::vector<Dim>& weight = c.inputs[1].dims;
  const double experts = static_cast<double>(weight[0].size);
  const double n = static_cast<double>(weight[1].size);
  const double k = static_cast<double>(weight[2].size);
  const double m = c.inputs[0].elements() / (experts * k);
  Work work = matmul_work(c, {experts, m, n, k}, /*b_is_parameter=*/true);
  if (c.inputs.size() == 3) {
    const Bytes result(experts * m * n * dtype_bytes(c.inputs[0].dtype));
    work.forward_pointwise = 2 * result;
    work.backward_pointwise = result;
    ++work.forward_kernels;
    ++work.backward_kernels;
  }
  return work;
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"experts", 8}, {"batch", 4}, {"seq", 4}, {"hidden", 32}}};
  const TensorType w{DType::kBf16, {{"experts", 8}, {"expert_ffn", 16}, {"hidden", 32}}};
  const TensorType bias{DType::kBf16, {{"experts", 8}, {"expert_ffn", 16}}};
  return {{{}, {x, w}}, {{}, {x, w, bias}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Box& x = c.input_boxes[0];
  const std::vector<std::int64_t> flat = {x[0].size(), x[1].size() * x[2].size(), x[3].size()};
  const Slot rows = k.call("aten::reshape", {Slot{0}, flat});
  const Slot weight = k.call("aten::transpose.int", {Slot{1}, std::int64_t{1}, std::int64_t{2}});
  Slot y = k.call("aten::bmm", {rows, weight});
  // As in linear: one device of a sum adds the bias.
  if (c.inputs.size() == 3 && c.part == 0) {
    const Slot bias = k.call("aten::unsqueeze", {Slot{2}, std::int64_t{1}});
    y = k.call("aten::add.Tensor", {y, bias});
  }
  return k.finish({k.call("aten::reshape", {y, sizes_of(c.output_boxes[0])})});
}

// As linear's, expert by expert.
Kernel backward_kernel(const KernelContext& c, const std::vector<bool>& wanted) {
  KernelBuilder k(1 + static_cast<int>(c.inputs.size()) + 1);
  const Box& x = c.input_boxes[0];
  const Box& y = c.output_boxes[0];
  const auto flat = [&](Slot t, const Box& box) {
    return k.call("aten::reshape",
                  {t, std::vector<std::int64_t>{box[0].size(), box[1].size() * box[2].size(),
                                                box[3].size()}});
  };
  const Slot dy = flat(Slot{0}, y);
  std::vector<Slot> gradients(c.inputs.size(), Slot{-1});
  if (wanted[0]) {
    gradients[0] = k.call("aten::reshape", {k.call("aten::bmm", {dy, Slot{2}}), sizes_of(x)});
  }
  if (wanted[1]) {
    const Slot columns = k.call("aten::transpose.int", {dy, std::int64_t{1}, std::int64_t{2}});
    gradients[1] = k.call("aten::bmm", {columns, flat(Slot{1}, x)});
  }
  if (wanted.size() == 3 && wanted[2] && c.part == 0) {
    gradients[2] = k.call("aten::sum.dim_IntList", {dy, std::vector<std::int64_t>{1}});
  }
  return k.finish(std::move(gradients));
}

}  // namespace

const OpDef kGroupedLinear = {
    .kind = "grouped_linear",
    .summary = "A linear per expert: x [e, b, s, k], W [e, n, k] (bias [e, n]) -> [e, b, s, n]",
    .aten = "",
    .operands = {2, 3},
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .backward_kernel = backward_kernel,
    .examples = examples,
};

}  // namespace meshwright
