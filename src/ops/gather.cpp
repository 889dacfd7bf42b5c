#include <fmt/format.h>

#include "ops/kernel_dims.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// As embedding, along any dim and of any table: that dim is frozen.
std::string annotation(const OpContext& c) {
  const std::size_t dim = dim_attr(c, "dim");
  std::string data;
  std::string indices;
  std::string result;
  for (std::size_t j = 0; j < c.inputs[1].dims.size(); ++j) indices += fmt::format("i{} ", j);
  for (std::size_t i = 0; i < c.inputs[0].dims.size(); ++i) {
    data += fmt::format("a{}{} ", i, i == dim ? "^" : "");
    result += i == dim ? indices : fmt::format("a{} ", i);
  }
  return data + ", " + indices + "-> " + result;
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  results[0].dtype = c.inputs[0].dtype;
  return results;
}

// Forward reads the elements that it picks, backward adds them into zeros.
Work work(const OpContext& c) {
  Work work;
  work.forward_traffic = c.inputs[1].bytes() + 2 * c.outputs[0].bytes();
  work.backward_traffic = c.inputs[1].bytes() + c.outputs[0].bytes() + c.inputs[0].bytes();
  work.backward_kernels = 2;
  return work;
}

Saved saved(const OpContext&) { return {{1}, {}, Bytes(0)}; }

// Negative indices count from the end.
Kernel kernel(const KernelContext& c) {
  const std::size_t dim = dim_attr(op_context(c), "dim");
  const std::int64_t size = c.inputs[0].dims[dim].size;
  std::int64_t count = 1;
  for (const Interval& i : c.input_boxes[1]) count *= i.size();
  KernelBuilder k(c);
  Slot index = k.call("aten::to.dtype", {Slot{1}, DType::kI64});
  index = k.call("aten::reshape", {index, std::vector<std::int64_t>{count}});
  const Slot negative = k.call("aten::lt.Scalar", {index, std::int64_t{0}});
  const Slot shifted = k.call("aten::add.Scalar", {index, size});
  index = k.call("aten::where.self", {negative, shifted, index});
  const Slot rows = k.call("aten::index_select", {Slot{0}, static_cast<std::int64_t>(dim), index});
  return k.finish({k.call("aten::reshape", {rows, sizes_of(c.output_boxes[0])})});
}

constexpr AttrSpec kAttrs[] = {{"dim", AttrType::kInt, true, -8, 7}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType ids{DType::kI64, {{"rows", 6}, {"columns", 2}}};
  return {{{{"dim", std::int64_t{1}}}, {x, ids}},
          {{{"dim", std::int64_t{-1}}}, {x, {DType::kI64, {}}}}};
}

}  // namespace

const OpDef kGather = {
    .kind = "gather",
    .summary = "Picks elements of one dim: data [a, v, b], indices [*] (integer) -> [a, *, b]",
    .operands = {2, 2},
    .element_types = "ai",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
