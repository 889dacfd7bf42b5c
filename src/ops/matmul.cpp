#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext&) { return "* m k+, * k+ n -> * m n"; }

Work work(const OpContext& c) {
  const std::vector<Dim>& a = c.inputs[0].dims;
  const double m = static_cast<double>(a[a.size() - 2].size);
  const double k = static_cast<double>(a.back().size);
  const double n = static_cast<double>(c.inputs[1].dims.back().size);
  return matmul_work(c, {c.inputs[0].elements() / (m * k), m, n, k}, /*b_is_parameter=*/false);
}

Saved saved(const OpContext&) { return {{0, 1}, {}, Bytes(0)}; }

// da = dc b^T, db = a^T dc.
Kernel backward_kernel(const KernelContext&, const std::vector<bool>& wanted) {
  KernelBuilder k(4);
  const Slot dc{0}, a{1}, b{2};
  const auto transposed = [&](Slot t) {
    return k.call("aten::transpose.int", {t, std::int64_t{-1}, std::int64_t{-2}});
  };
  std::vector<Slot> gradients(2, Slot{-1});
  if (wanted[0]) gradients[0] = k.call("aten::matmul", {dc, transposed(b)});
  if (wanted[1]) gradients[1] = k.call("aten::matmul", {transposed(a), dc});
  return k.finish(std::move(gradients));
}

std::vector<OpDef::Example> examples() {
  const TensorType a{DType::kBf16, {{"batch", 4}, {"heads", 2}, {"seq", 16}, {"head_dim", 8}}};
  const TensorType b{DType::kBf16, {{"batch", 4}, {"heads", 2}, {"head_dim", 8}, {"keys", 12}}};
  const TensorType m{DType::kF32, {{"rows", 6}, {"inner", 8}}};
  const TensorType n{DType::kF32, {{"inner", 8}, {"columns", 10}}};
  return {{{}, {a, b}}, {{}, {m, n}}};
}

}  // namespace

const OpDef kMatmul = {
    .kind = "matmul",
    .summary = "Batched product of two activations: a [*, m, k], b [*, k, n] -> [*, m, n]",
    .aten = "aten::matmul",
    .operands = {2, 2},
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .backward_kernel = backward_kernel,
    .examples = examples,
};

}  // namespace meshwright
