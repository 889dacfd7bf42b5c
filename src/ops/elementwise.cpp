#include <fmt/format.h>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// The second operand may have fewer dims (aligned to the last ones) or dims of size 1: it is
// repeated.
std::string broadcast(const OpContext& c) {
  const std::vector<Dim>& a = c.inputs[0].dims;
  const std::vector<Dim>& b = c.inputs[1].dims;
  if (b.size() > a.size()) {
    throw Error("the second operand has more dimensions than the first", "",
                "swap them: only the second one is broadcast");
  }
  std::string first;
  std::string second;
  for (std::size_t i = 0; i < a.size(); ++i) {
    first += fmt::format("{}a{}", i == 0 ? "" : " ", i);
    if (i + b.size() < a.size()) continue;
    const std::int64_t size = b[i + b.size() - a.size()].size;
    if (!second.empty()) second += ' ';
    second += size == 1 && a[i].size != 1 ? "1" : fmt::format("a{}", i);
  }
  return fmt::format("{}, {} -> {}", first, second, first);
}

// The backward pass of a sum copies nothing, but the values that it joins are mostly used twice (a
// residual stream), so that autograd adds two gradients: the forward cost again.
Work add_work(const OpContext& c) { return memory_work(c, 1, 1); }
Saved nothing(const OpContext&) { return {}; }

// dy, a, b in; da, db out.
Work mul_work(const OpContext& c) { return memory_work(c, 1, 5.0 / 3); }
Saved both(const OpContext&) { return {{0, 1}, {}, Bytes(0)}; }

Work scale_work(const OpContext& c) { return memory_work(c, 1, 1); }

Kernel scale_kernel(const KernelContext& c) {
  return one_call(c, "aten::mul.Scalar", {attr_float(c.attrs, "factor", 1)});
}

constexpr AttrSpec kScaleAttrs[] = {{"factor", AttrType::kFloat, false, -1e30, 1e30}};

std::vector<OpDef::Example> pairs() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType row{DType::kBf16, {{"seq", 16}, {"hidden", 32}}};
  const TensorType column{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"one", 1}}};
  return {{{}, {x, x}}, {{}, {x, row}}, {{}, {x, column}}};
}

std::vector<OpDef::Example> singles() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  return {{{{"factor", 0.5}}, {x}}, {{}, {x}}};
}

}  // namespace

const OpDef kAdd = {
    .kind = "add",
    .summary = "Sum; the second operand broadcasts: [*], [*] -> [*]",
    .aten = "aten::add.Tensor",
    .operands = {2, 2},
    .annotation = broadcast,
    .work = add_work,
    .saved = nothing,
    .examples = pairs,
};

const OpDef kMul = {
    .kind = "mul",
    .summary = "Product; the second operand broadcasts: [*], [*] -> [*]",
    .aten = "aten::mul.Tensor",
    .operands = {2, 2},
    .annotation = broadcast,
    .work = mul_work,
    .saved = both,
    .examples = pairs,
};

const OpDef kScale = {
    .kind = "scale",
    .summary = "Product with a constant factor: [*] -> [*]",
    .aten = "",
    .attrs = kScaleAttrs,
    .annotation = same_shape,
    .work = scale_work,
    .saved = nothing,
    .kernel = scale_kernel,
    .examples = singles,
};

}  // namespace meshwright
