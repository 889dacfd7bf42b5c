#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext& c) {
  const std::vector<std::int64_t> perm = attr_ints(c.attrs, "perm");
  const std::size_t rank = c.inputs[0].dims.size();
  std::vector<bool> seen(rank);
  std::string operand;
  std::string result;
  for (std::size_t i = 0; i < perm.size() && i < rank; ++i) {
    const auto p = static_cast<std::size_t>(perm[i]);
    if (p >= rank || seen[p]) break;
    seen[p] = true;
    operand += fmt::format(" a{}", i);
    result += fmt::format(" a{}", p);
  }
  if (perm.size() != rank || std::ranges::count(seen, true) != static_cast<std::ptrdiff_t>(rank)) {
    throw Error(fmt::format("attribute 'perm' must be a permutation of 0..{}", rank - 1));
  }
  return operand + " -> " + result;
}

Work work(const OpContext& c) { return memory_work(c, 0, 1); }
Saved saved(const OpContext&) { return {}; }

constexpr AttrSpec kAttrs[] = {{"perm", AttrType::kInts, true, 0, 7}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 4}, {"head_dim", 8}}};
  const TensorType m{DType::kI64, {{"rows", 6}, {"columns", 4}}};
  return {{{{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}}, {x}},
          {{{"perm", std::vector<std::int64_t>{1, 0}}}, {m}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Slot view = k.call("aten::permute", {Slot{0}, attr_ints(c.attrs, "perm")});
  return k.finish({k.call("aten::contiguous", {view})});
}

}  // namespace

const OpDef kTranspose = {
    .kind = "transpose",
    .summary = "Permutes dims (a copy): result dim i is operand dim perm[i]",
    .aten = "",
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
