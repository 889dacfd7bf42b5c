#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext&) { return "* h^, h^ -> * h^"; }

Work work(const OpContext& c) { return memory_work(c, 4, 2); }

// The input and one fp32 statistic per row.
Saved saved(const OpContext& c) {
  const double rows = c.inputs[0].elements() / static_cast<double>(c.inputs[1].dims[0].size);
  return {{0}, {}, Bytes(4 * rows)};
}

std::vector<OpDef::Example> examples() {
  return {{{},
           {{DType::kBf16, {{"batch", 4, 1}, {"seq", 16, 1}, {"hidden", 32, 1}}},
            {DType::kBf16, {{"hidden", 32, 1}}}}}};
}

}  // namespace

const OpDef kRmsNorm = {
    .kind = "rms_norm",
    .summary = "Root-mean-square normalization of the last dim: x [*, h], weight [h] -> [*, h]",
    .aten = "aten::rms_norm",
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
