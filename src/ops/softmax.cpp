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

}  // namespace

const OpDef kSoftmax = {
    .kind = "softmax",
    .summary = "Softmax of the last dim: [*, k] -> [*, k]",
    .aten = "aten::softmax.int",
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
