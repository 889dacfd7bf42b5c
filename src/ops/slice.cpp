#include <fmt/format.h>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext& c) {
  const std::size_t dim = dim_attr(c, "dim");
  return frozen_dim(c.inputs[0].dims.size(), dim);
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  Dim& dim = results[0].dims[dim_attr(c, "dim")];
  const Dim& whole = c.inputs[0].dims[dim_attr(c, "dim")];
  const std::int64_t start = attr_int(c.attrs, "start", 0);
  const std::int64_t length = attr_int(c.attrs, "length", 1);
  if (start + length > whole.size) {
    throw Error(fmt::format("slice {}..{} is outside of dimension '{}' of size {}", start,
                            start + length, whole.name, whole.size));
  }
  dim.size = length;
  dim.unit = length % whole.unit == 0 ? whole.unit : 1;
  return results;
}

// Forward copies the part, backward writes it into zeros.
Work work(const OpContext& c) {
  Work work;
  work.forward_traffic = 2 * c.outputs[0].bytes();
  work.backward_traffic = c.outputs[0].bytes() + c.inputs[0].bytes();
  work.backward_kernels = 2;
  return work;
}

Saved saved(const OpContext&) { return {}; }

constexpr AttrSpec kAttrs[] = {
    {"dim", AttrType::kInt, true, -8, 7},
    {"start", AttrType::kInt},
    {"length", AttrType::kInt, true, 1},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32, 8}}};
  const auto n = [](std::int64_t v) { return Attr(v); };
  return {{{{"dim", n(1)}, {"length", n(1)}}, {x}},
          {{{"dim", n(-1)}, {"start", n(8)}, {"length", n(16)}}, {x}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::int64_t start = attr_int(c.attrs, "start", 0);
  const Slot view = k.call("aten::slice.Tensor", {Slot{0}, attr_int(c.attrs, "dim", 0), start,
                                                  start + attr_int(c.attrs, "length", 1)});
  return k.finish({k.call("aten::clone", {view})});
}

}  // namespace

const OpDef kSlice = {
    .kind = "slice",
    .summary = "The interval [start, start + length) of one dim",
    .aten = "",
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
