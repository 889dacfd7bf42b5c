#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext& c) {
  if (c.inputs.size() == 3) return "* h^, h^, h^ -> * h^";
  return c.inputs.size() == 2 ? "* h^, h^ -> * h^" : "* h^ -> * h^";
}

// As rms_norm: x in, y out; backward x and dy in, dx out, parameter gradients in a second kernel.
Work work(const OpContext& c) {
  Work work = memory_work(c, 7, 1.5);
  work.backward_kernels = c.inputs.size() > 1 ? 2 : 1;
  return work;
}

// The input, and mean and reciprocal deviation in fp32 per row (Korthikanti et al. 2022,
// section 4.1, counts 4sbh for the two norms of a layer and leaves the statistics out).
Saved saved(const OpContext& c) {
  const double rows = c.inputs[0].elements() / static_cast<double>(c.inputs[0].dims.back().size);
  return {{0}, {}, Bytes(8 * rows)};
}

constexpr AttrSpec kAttrs[] = {{"eps", AttrType::kFloat, false, 0, 1}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType w{DType::kBf16, {{"hidden", 32}}};
  return {{{{"eps", 1e-5}}, {x, w, w}}, {{}, {x, w}}, {{}, {x}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const auto operand = [&](int i) {
    return i < static_cast<int>(c.inputs.size()) ? KernelArg(Slot{i}) : KernelArg(NoValue());
  };
  const std::vector<std::int64_t> width = {c.inputs[0].dims.back().size};
  return k.finish({k.call("aten::layer_norm", {Slot{0}, width, operand(1), operand(2),
                                               attr_float(c.attrs, "eps", 1e-5)})});
}

}  // namespace

const OpDef kLayerNorm = {
    .kind = "layer_norm",
    .summary = "Normalization of the last dim: x [*, h] (weight [h] (bias [h])) -> [*, h]",
    .aten = "",
    .operands = {1, 3},
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
