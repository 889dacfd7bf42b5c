#include <fmt/format.h>

#include "ops/ops.h"

namespace meshwright {
namespace {

// The pooled dim is frozen: means of parts do not add up to the mean.
std::string annotation(const OpContext& c) {
  const std::size_t dim = dim_attr(c, "dim");
  std::string operand;
  std::string result;
  for (std::size_t i = 0; i < c.inputs[0].dims.size(); ++i) {
    operand += fmt::format("a{}{} ", i, i == dim ? "^" : "");
    if (i != dim) result += fmt::format(" a{}", i);
  }
  return operand + "->" + result;
}

Work work(const OpContext& c) {
  Work work;
  work.forward_flops = work.backward_input_flops = Flops(c.inputs[0].elements());
  work.forward_traffic = work.backward_traffic = operand_traffic(c);
  return work;
}

Saved saved(const OpContext&) { return {}; }

constexpr AttrSpec kAttrs[] = {{"dim", AttrType::kInt, true, -8, 7}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"patches", 16}, {"hidden", 32}}};
  return {{{{"dim", std::int64_t{1}}}, {x}}, {{{"dim", std::int64_t{-1}}}, {x}}};
}

Kernel kernel(const KernelContext& c) {
  return one_call(c, "aten::mean.dim", {std::vector<std::int64_t>{attr_int(c.attrs, "dim", 0)}});
}

}  // namespace

const OpDef kMeanPool = {
    .kind = "mean_pool",
    .summary = "Mean over one dim, which the result lacks",
    .aten = "",
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
