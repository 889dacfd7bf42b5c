#include "ops/ops.h"

namespace meshwright {
namespace {

// When k is split every part computes a partial sum; the bias is then a value part of its own,
// added once.
std::string annotation(const OpContext& c) {
  return c.inputs.size() == 3 ? "* k+, n k+, n -> * n" : "* k+, n k+ -> * n";
}

// A bias rides in the epilogue of the forward product; its gradient is a reduction of its own.
Work work(const OpContext& c) {
  const TensorType& weight = c.inputs[1];
  const double n = static_cast<double>(weight.dims[0].size);
  const double k = static_cast<double>(weight.dims[1].size);
  const double m = c.inputs[0].elements() / k;
  Work work = matmul_work(c, {1, m, n, k}, /*b_is_parameter=*/true);
  if (c.inputs.size() == 3) {
    work.backward_pointwise = Bytes(m * n * dtype_bytes(c.inputs[0].dtype));
    ++work.backward_kernels;
  }
  return work;
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType w{DType::kBf16, {{"heads", 64, 8}, {"hidden", 32}}};
  const TensorType bias{DType::kBf16, {{"heads", 64, 8}}};
  return {{{}, {x, w}}, {{}, {x, w, bias}}};
}

// The bias is added by one of the devices that share a sum; the others give it no gradient.
Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  std::vector<KernelArg> args = {Slot{0}, Slot{1}};
  if (c.inputs.size() == 3 && c.part == 0) args.emplace_back(Slot{2});
  return k.finish({k.call("aten::linear", std::move(args))});
}

// dx = dy w, dw = dy^T x over all rows, db = sum of dy.
Kernel backward_kernel(const KernelContext& c, const std::vector<bool>& wanted) {
  KernelBuilder k(1 + static_cast<int>(c.inputs.size()) + 1);
  const Slot dy{0}, x{1}, w{2};
  std::vector<Slot> gradients(c.inputs.size(), Slot{-1});
  if (wanted[0]) gradients[0] = k.call("aten::matmul", {dy, w});
  std::int64_t rows = 1;
  for (std::size_t d = 0; d + 1 < c.input_boxes[0].size(); ++d) rows *= c.input_boxes[0][d].size();
  const auto flat = [&](Slot t, const Box& box) {
    return k.call("aten::reshape", {t, std::vector<std::int64_t>{rows, box.back().size()}});
  };
  const bool bias = wanted.size() == 3 && wanted[2] && c.part == 0;
  if (wanted[1] || bias) {
    const Slot dy_rows = flat(dy, c.output_boxes[0]);
    if (wanted[1]) {
      const Slot dy_columns = k.call("aten::t", {dy_rows});
      gradients[1] = k.call("aten::mm", {dy_columns, flat(x, c.input_boxes[0])});
    }
    if (bias) {
      gradients[2] = k.call("aten::sum.dim_IntList", {dy_rows, std::vector<std::int64_t>{0}});
    }
  }
  return k.finish(std::move(gradients));
}

}  // namespace

const OpDef kLinear = {
    .kind = "linear",
    .summary = "y = x W^T (+ bias): x [*, k], W [n, k], bias [n] -> y [*, n]",
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
