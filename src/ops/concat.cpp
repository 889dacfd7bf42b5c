#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Joins operands along one dim. Operands of lower rank (aligned to the last dims) and dims of size
// 1 are repeated, as a class token is over the batch or a shared rotary key over heads.

const TensorType& widest(const OpContext& c) {
  return *std::ranges::max_element(c.inputs, {}, &TensorType::rank);
}

// Size that operands have at dim `i` of the result.
std::int64_t shared_size(const OpContext& c, std::size_t i) {
  std::int64_t size = 1;
  const std::size_t rank = widest(c).dims.size();
  for (const TensorType& t : c.inputs) {
    if (i + t.dims.size() >= rank) size = std::max(size, t.dims[i + t.dims.size() - rank].size);
  }
  return size;
}

// Dims named "a<i>"; the parts of the joined dim are factors of their own.
std::string annotation(const OpContext& c) {
  const std::size_t rank = widest(c).dims.size();
  const std::size_t joined = dim_attr(c, "dim", rank);
  std::string text;
  std::string result;
  for (std::size_t n = 0; n < c.inputs.size(); ++n) {
    const std::vector<Dim>& dims = c.inputs[n].dims;
    if (dims.size() + joined < rank) {
      throw Error(fmt::format("operand {} lacks the joined dimension {}", n, joined));
    }
    if (n > 0) text += ", ";
    for (std::size_t i = rank - dims.size(); i < rank; ++i) {
      const std::int64_t size = dims[i + dims.size() - rank].size;
      if (i == joined)
        text += fmt::format("c{}^ ", n);
      else
        text += size == 1 && shared_size(c, i) != 1 ? "1 " : fmt::format("a{} ", i);
    }
  }
  for (std::size_t i = 0; i < rank; ++i) {
    if (i == joined)
      result += "c0' ";
    else
      result += fmt::format("a{} ", i);
  }
  return text + "-> " + result;
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  const std::size_t rank = results[0].dims.size();
  const std::size_t joined = dim_attr(c, "dim", rank);
  std::int64_t size = 0;
  for (const TensorType& t : c.inputs) size += t.dims[joined + t.dims.size() - rank].size;
  const Dim& first = widest(c).dims[joined];
  const bool one_unit = std::ranges::all_of(c.inputs, [&](const TensorType& t) {
    return t.dims[joined + t.dims.size() - rank].unit == first.unit;
  });
  results[0].dims[joined] = {first.name, size, one_unit ? first.unit : 1};
  return results;
}

Work work(const OpContext& c) { return memory_work(c, 0, 1); }
Saved saved(const OpContext&) { return {}; }

constexpr AttrSpec kAttrs[] = {{"dim", AttrType::kInt, true, -8, 7}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"patches", 15}, {"hidden", 32}}};
  const TensorType token{DType::kBf16, {{"patches", 1}, {"hidden", 32}}};
  const TensorType nope{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 4}, {"head_dim", 8}}};
  const TensorType rope{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"one", 1}, {"head_dim", 4}}};
  const auto n = [](std::int64_t v) { return Attr(v); };
  return {{{{"dim", n(1)}}, {token, x}},
          {{{"dim", n(-1)}}, {nope, rope}},
          {{{"dim", n(2)}}, {x, x, x}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::size_t rank = c.outputs[0].dims.size();
  const std::size_t joined = dim_attr({c.attrs, c.inputs, c.outputs}, "dim", rank);
  std::vector<Slot> pieces;
  for (std::size_t n = 0; n < c.inputs.size(); ++n) {
    const std::vector<std::int64_t> own = sizes_of(c.input_boxes[n]);
    std::vector<std::int64_t> sizes = sizes_of(c.output_boxes[0]);
    sizes[joined] = own[joined + own.size() - rank];
    const Slot operand{static_cast<int>(n)};
    pieces.push_back(own == sizes ? operand : k.call("aten::expand", {operand, sizes}));
  }
  return k.finish({k.call("aten::cat", {pieces, static_cast<std::int64_t>(joined)})});
}

}  // namespace

const OpDef kConcat = {
    .kind = "concat",
    .summary = "Joins operands along one dim; smaller operands are repeated",
    .aten = "",
    .operands = {1, 64},
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
