#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext& c) {
  return c.inputs.size() == 2 ? "* h^, h^ -> * h^" : "* h^ -> * h^";
}

// Forward reads x and writes y; backward reads x and dy and writes dx, then reduces the weight's
// gradient over rows in a second kernel.
Work work(const OpContext& c) {
  Work work = memory_work(c, 4, 1.5);
  work.backward_kernels = c.inputs.size() == 2 ? 2 : 1;
  return work;
}

// The input and one fp32 statistic per row.
Saved saved(const OpContext& c) {
  const double rows = c.inputs[0].elements() / static_cast<double>(c.inputs[0].dims.back().size);
  return {{0}, {}, Bytes(4 * rows)};
}

constexpr AttrSpec kAttrs[] = {{"eps", AttrType::kFloat, false, 0, 1}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType q{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 4}, {"head_dim", 8}}};
  return {{{{"eps", 1e-6}}, {x, {DType::kBf16, {{"hidden", 32}}}}},
          {{}, {x}},
          {{}, {q, {DType::kBf16, {{"head_dim", 8}}}}}};
}

// Zhang and Sennrich 2019; the statistic in the precise type, as Llama's norm has it.
Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::vector<std::int64_t> last = {-1};
  const Slot x = cast(k, {0}, DType::kF32);
  const Slot square = k.call("aten::mean.dim", {k.call("aten::square", {x}), last, true});
  const double eps = attr_float(c.attrs, "eps", 1e-6);
  const Slot scale = k.call("aten::rsqrt", {k.call("aten::add.Scalar", {square, eps})});
  Slot y = cast(k, k.call("aten::mul.Tensor", {x, scale}), c.inputs[0].dtype);
  if (c.inputs.size() == 2) y = k.call("aten::mul.Tensor", {y, Slot{1}});
  return k.finish({y});
}

}  // namespace

const OpDef kRmsNorm = {
    .kind = "rms_norm",
    .summary = "Root-mean-square normalization of the last dim: x [*, h] (weight [h]) -> [*, h]",
    .aten = "",
    .operands = {1, 2},
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
