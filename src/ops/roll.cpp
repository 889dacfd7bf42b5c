#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext& c) {
  const auto dims = attr_ints(c.attrs, "dims");
  if (dims.size() != attr_ints(c.attrs, "shifts").size()) {
    throw Error("attributes 'dims' and 'shifts' must have equally many elements");
  }
  const std::int64_t rank = c.inputs[0].rank();
  std::string shape;
  for (std::int64_t i = 0; i < rank; ++i) {
    shape += fmt::format("a{}{} ", i, std::ranges::count(dims, i) > 0 ? "^" : "");
  }
  for (std::int64_t dim : dims) {
    if (dim >= rank)
      throw Error(fmt::format("attribute 'dims': {} is not below rank {}", dim, rank));
  }
  return shape + "-> " + shape;
}

Work work(const OpContext& c) { return memory_work(c, 0, 1); }
Saved saved(const OpContext&) { return {}; }

Kernel kernel(const KernelContext& c) {
  const auto dims = attr_ints(c.attrs, "dims");
  if (dims.empty()) return one_call(c, "aten::alias");  // aten::roll wants a shift.
  return one_call(c, "aten::roll", {attr_ints(c.attrs, "shifts"), dims});
}

constexpr AttrSpec kAttrs[] = {
    {"dims", AttrType::kInts, true, 0, 7},
    {"shifts", AttrType::kInts, true, -1048576, 1048576},
};

std::vector<OpDef::Example> examples() {
  using Ints = std::vector<std::int64_t>;
  const TensorType x{DType::kBf16, {{"batch", 4}, {"height", 8}, {"width", 6}, {"hidden", 32}}};
  return {{{{"dims", Ints{1, 2}}, {"shifts", Ints{-3, -3}}}, {x}},
          {{{"dims", Ints{1}}, {"shifts", Ints{2}}}, {x}}};
}

}  // namespace

const OpDef kRoll = {
    .kind = "roll",
    .summary = "Cyclic shift along dims (shifted windows)",
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
