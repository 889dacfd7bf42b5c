#include "ops/kernel_dims.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext& c) {
  return frozen_dim(c.inputs[0].dims.size(), dim_attr(c, "dim"));
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  Dim& dim = results[0].dims[dim_attr(c, "dim")];
  dim.size += attr_int(c.attrs, "before", 0) + attr_int(c.attrs, "after", 0);
  dim.unit = 1;
  return results;
}

Work work(const OpContext& c) { return memory_work(c, 0, 1); }
Saved saved(const OpContext&) { return {}; }

Kernel kernel(const KernelContext& c) {
  // The list begins with the last dim and may end before the first.
  const std::size_t behind = c.inputs[0].dims.size() - 1 - dim_attr(op_context(c), "dim");
  std::vector<std::int64_t> pads(2 * behind);
  pads.push_back(attr_int(c.attrs, "before", 0));
  pads.push_back(attr_int(c.attrs, "after", 0));
  // Which refuses to pad what is empty.
  if (is_empty(c.output_boxes[0])) {
    KernelBuilder k(c);
    return k.finish({k.call("aten::new_zeros", {Slot{0}, sizes_of(c.output_boxes[0])})});
  }
  return one_call(c, "aten::constant_pad_nd", {pads, std::int64_t{0}});
}

constexpr AttrSpec kAttrs[] = {
    {"dim", AttrType::kInt, true, -8, 7},
    {"before", AttrType::kInt},
    {"after", AttrType::kInt},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"height", 7}, {"width", 6}, {"hidden", 32}}};
  const auto n = [](std::int64_t v) { return Attr(v); };
  return {{{{"dim", n(1)}, {"after", n(1)}}, {x}},
          {{{"dim", n(-2)}, {"before", n(1)}, {"after", n(1)}}, {x}}};
}

}  // namespace

const OpDef kPad = {
    .kind = "pad",
    .summary = "Zeros before and after one dim",
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
