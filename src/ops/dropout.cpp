#include "ops/ops.h"

namespace meshwright {
namespace {

// p = 0 runs no kernel and keeps nothing.
bool active(const OpContext& c) { return attr_float(c.attrs, "p", 0) > 0; }

Work work(const OpContext& c) {
  Work work;
  if (!active(c)) {
    work.kernel = KernelClass::kView;
    work.forward_kernels = work.backward_kernels = 0;
    return work;
  }
  const double elements = c.inputs[0].elements();
  work.forward_flops = work.backward_input_flops = Flops(2 * elements);
  work.forward_traffic = 2 * c.inputs[0].bytes() + Bytes(elements);
  work.backward_traffic = work.forward_traffic;
  return work;
}

// A mask of one byte per element (Korthikanti et al. 2022, section 4.1).
Saved saved(const OpContext& c) { return {{}, {}, Bytes(active(c) ? c.inputs[0].elements() : 0)}; }

constexpr AttrSpec kAttrs[] = {{"p", AttrType::kFloat, false, 0, 1}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  return {{{{"p", 0.1}}, {x}}, {{}, {x}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  return k.finish({drop(k, {0}, attr_float(c.attrs, "p", 0), c.inputs[0], c.input_boxes[0])});
}

}  // namespace

const OpDef kDropout = {
    .kind = "dropout",
    .summary = "Zeroes elements with probability p and scales the rest: [*] -> [*]",
    .aten = "",
    .attrs = kAttrs,
    .annotation = same_shape,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
