#include "ops/ops.h"

namespace meshwright {
namespace {

// With v split every part looks up the rows that it holds and leaves zeros elsewhere: a partial
// sum.
std::string annotation(const OpContext&) { return "*, v+ h -> * h"; }

// Gathers rows forward and scatter-adds them backward; the table is never passed over as a whole.
Work work(const OpContext& c) {
  const Bytes rows(c.inputs[0].elements() * static_cast<double>(c.inputs[1].dims[1].size) *
                   dtype_bytes(c.inputs[1].dtype));
  Work work;
  work.forward_traffic = c.inputs[0].bytes() + 2 * rows;
  work.backward_weight_flops = Flops(rows.value / dtype_bytes(c.inputs[1].dtype));
  work.backward_traffic = c.inputs[0].bytes() + 3 * rows;
  work.backward_kernels = 2;  // Sort by row, then add.
  return work;
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

std::vector<OpDef::Example> examples() {
  const TensorType table{DType::kBf16, {{"vocab", 64}, {"hidden", 32}}};
  return {{{}, {{DType::kI64, {{"batch", 4}, {"seq", 16}}}, table}},
          {{}, {{DType::kI32, {{"seq", 16}}}, table}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Interval rows = c.input_boxes[1][0];
  if (rows.size() == c.inputs[1].dims[0].size) {
    return k.finish({k.call("aten::embedding", {Slot{1}, Slot{0}})});
  }
  if (rows.empty()) {
    return k.finish({k.call(
        "aten::zeros", {sizes_of(c.output_boxes[0]), c.outputs[0].dtype, NoValue(), RunDevice()})});
  }
  // Rows that others hold: any row of this part, then zeros.
  const Slot local = k.call("aten::sub.Scalar", {Slot{0}, rows.begin});
  const Slot near = k.call("aten::clamp", {local, std::int64_t{0}, rows.size() - 1});
  const Slot elsewhere =
      k.call("aten::unsqueeze", {k.call("aten::ne.Tensor", {local, near}), std::int64_t{-1}});
  const Slot found = k.call("aten::embedding", {Slot{1}, near});
  return k.finish({k.call("aten::masked_fill.Scalar", {found, elsewhere, 0.0})});
}

}  // namespace

const OpDef kEmbedding = {
    .kind = "embedding",
    .summary = "Rows of a table: ids [*] (integer), table [vocab, h] -> [*, h]",
    .aten = "",
    .operands = {2, 2},
    .element_types = "if",
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
