#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext&) { return "* k^ -> * k^"; }

Work work(const OpContext& c) { return memory_work(c, 5, 1.5); }

Saved saved(const OpContext&) { return {{}, {0}, Bytes(0)}; }

std::vector<OpDef::Example> examples() {
  return {{{}, {{DType::kBf16, {{"batch", 4}, {"heads", 2}, {"seq", 16}, {"keys", 16}}}}},
          {{}, {{DType::kF32, {{"tokens", 8}, {"types", 6}}}}}};
}

Kernel kernel(const KernelContext& c) {
  return one_call(c, "aten::softmax.int", {std::int64_t{-1}});
}

}  // namespace

const OpDef kSoftmax = {
    .kind = "softmax",
    .summary = "Softmax of the last dim: [*, k] -> [*, k]",
    .aten = "",
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
