#include "ops/ops.h"

namespace meshwright {
namespace {

// A view without a past: the backward pass ends here (recycled iterations of AlphaFold 2, Jumper et
// al. 2021, supplementary 1.11.8: gradients flow through the last iteration only).
Work work(const OpContext&) {
  Work work;
  work.kernel = KernelClass::kView;
  work.forward_kernels = work.backward_kernels = 0;
  return work;
}

Saved saved(const OpContext&) { return {}; }

std::vector<OpDef::Example> examples() {
  return {{{}, {{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}}}},
          {{}, {{DType::kF32, {{"residues", 8}, {"residues2", 8}}}}}};
}

}  // namespace

const OpDef kDetach = {
    .kind = "detach",
    .summary = "The operand itself, through which no gradient flows: [*] -> [*]",
    .aten = "aten::detach",
    .view = true,
    .annotation = same_shape,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
