#include "ops/ops.h"

namespace meshwright {
namespace {

// When k is split every part computes a partial sum; the bias is then a value part of its own,
// added once.
std::string annotation(const OpContext& c) {
  return c.inputs.size() == 3 ? "* k+, n k+, n -> * n" : "* k+, n k+ -> * n";
}

Work work(const OpContext& c) {
  const TensorType& weight = c.inputs[1];
  const double n = static_cast<double>(weight.dims[0].size);
  const double k = static_cast<double>(weight.dims[1].size);
  return matmul_work(c, {1, c.inputs[0].elements() / k, n, k}, /*b_is_parameter=*/true);
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4, 1}, {"seq", 16, 1}, {"hidden", 32, 1}}};
  const TensorType w{DType::kBf16, {{"ffn", 64, 1}, {"hidden", 32, 1}}};
  const TensorType bias{DType::kBf16, {{"ffn", 64, 1}}};
  return {{{}, {x, w}}, {{}, {x, w, bias}}};
}

}  // namespace

const OpDef kLinear = {
    .kind = "linear",
    .summary = "y = x W^T (+ bias): x [*, k], W [n, k], bias [n] -> y [*, n]",
    .aten = "aten::linear",
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
