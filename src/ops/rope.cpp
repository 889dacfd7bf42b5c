#include <fmt/format.h>

#include <cmath>

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

// Su et al. 2021 with base 10000; pairs are (i, i + rotary / 2), as Llama's weights have them.
Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Box& box = c.input_boxes[0];
  const std::int64_t width = c.inputs[0].dims.back().size;
  const std::int64_t rotary = attr_int(c.attrs, "rotary_dim", width);
  const std::int64_t half = rotary / 2;
  // Dim 1; a sequence by itself has its positions in front.
  const std::size_t at = box.size() > 2 ? 1 : 0;
  const std::int64_t offset = attr_int(c.attrs, "offset", 0);
  const Slot position =
      cast(k, indices(k, {box[at].begin + offset, box[at].end + offset}), DType::kF32);
  const Slot pair = cast(k, indices(k, {0, half}), DType::kF32);
  const Slot frequency = k.call(
      "aten::exp",
      {k.call("aten::mul.Scalar", {pair, -std::log(10000.0) * 2 / static_cast<double>(rotary)})});
  const Slot angle = k.call("aten::outer", {position, frequency});
  // Ones for the dims between positions and elements.
  std::vector<std::int64_t> shape(box.size() - at, 1);
  shape.front() = box[at].size();
  shape.back() = half;
  const auto table = [&](std::string_view function) {
    return cast(k, k.call("aten::reshape", {k.call(function, {angle}), shape}), c.inputs[0].dtype);
  };
  const Slot cosine = table("aten::cos");
  const Slot sine = table("aten::sin");
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return k.call("aten::slice.Tensor", {Slot{0}, std::int64_t{-1}, begin, end});
  };
  const auto product = [&](Slot a, Slot b) { return k.call("aten::mul.Tensor", {a, b}); };
  const Slot first = part(0, half);
  const Slot second = part(half, rotary);
  std::vector<Slot> pieces = {
      k.call("aten::sub.Tensor", {product(first, cosine), product(second, sine)}),
      k.call("aten::add.Tensor", {product(second, cosine), product(first, sine)})};
  if (rotary < width) pieces.push_back(part(rotary, width));
  return k.finish({k.call("aten::cat", {pieces, std::int64_t{-1}})});
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
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
