#include <fmt/format.h>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext&) { return "* d^ -> * d^"; }

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  const std::int64_t width = c.inputs[0].dims.back().size;
  const std::int64_t rotary = attr_int(c.attrs, "rotary_dim", width);
  if (rotary > width || rotary % 2 != 0) {
    throw Error(
        fmt::format("attribute 'rotary_dim' must be even and at most {}: {}", width, rotary));
  }
  return infer_from_rule(rule, c.inputs);
}

// One fused kernel each way; the sine and cosine tables are constants shared by all layers.
Work work(const OpContext& c) { return memory_work(c, 3, 1); }

Saved saved(const OpContext&) { return {}; }

constexpr AttrSpec kAttrs[] = {
    {"rotary_dim", AttrType::kInt, false, 1},
    {"offset", AttrType::kInt},  // Position of the first token (of dim 1); default 0.
};

std::vector<OpDef::Example> examples() {
  const TensorType q{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 4}, {"head_dim", 8}}};
  const TensorType k{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"head_dim", 8}}};
  return {{{}, {q}}, {{{"rotary_dim", std::int64_t{4}}}, {k}}};
}

}  // namespace

const OpDef kRope = {
    .kind = "rope",
    .summary =
        "Rotary position embedding of the last dim (its first rotary_dim elements): [*, d] -> [*, "
        "d]",
    .aten = "",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
