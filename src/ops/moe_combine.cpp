#include <fmt/format.h>

#include "base/error.h"
#include "ops/moe_windows.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// The inverse of moe_dispatch: every device adds its own tokens' expert results, weighted.
std::string annotation(const OpContext&) { return "e^ b s' h, b s e^ -> b s h"; }

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  const double rows = static_cast<double>(c.inputs[0].dims[2].size);
  const double seq = static_cast<double>(c.inputs[1].dims[1].size);
  const double experts = static_cast<double>(c.inputs[1].dims[2].size);
  const double top_k = static_cast<double>(attr_int(c.attrs, "top_k", 1));
  if (rows * experts < seq * top_k || rows > seq) {
    throw Error(fmt::format("{} rows per expert cannot hold {} tokens for {} of {} experts", rows,
                            seq, top_k, experts));
  }
  return infer_from_rule(rule, c.inputs);
}

// Forward gathers rows, weighs and adds them; backward scatters dy, and takes its product with the
// expert results for the probabilities.
Work work(const OpContext& c) {
  Work work;
  work.forward_flops = Flops(2 * c.inputs[0].elements());
  work.forward_traffic = operand_traffic(c);
  work.backward_input_flops = 2 * work.forward_flops;
  work.backward_traffic = 3 * c.inputs[0].bytes() + 2 * c.inputs[1].bytes();
  work.backward_kernels = 2;
  return work;
}

Saved saved(const OpContext&) { return {{0, 1}, {}, Bytes(0)}; }

constexpr AttrSpec kAttrs[] = {{"top_k", AttrType::kInt, true, 1, 1048576}};

std::vector<OpDef::Example> examples() {
  const TensorType y{DType::kBf16, {{"experts", 8}, {"batch", 4}, {"seq", 4}, {"hidden", 32}}};
  const TensorType z{DType::kBf16, {{"experts", 8}, {"batch", 4}, {"seq", 2}, {"hidden", 32}}};
  const TensorType probs{DType::kF32, {{"batch", 4}, {"seq", 16}, {"experts", 8}}};
  return {{{{"top_k", std::int64_t{2}}}, {y, probs}}, {{{"top_k", std::int64_t{1}}}, {z, probs}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Box& y = c.input_boxes[0];
  const ExpertRows rows = expert_rows(k, {1}, c.input_boxes[1], y[2], c.inputs[1].dims[1].size,
                                      c.inputs[0].dims[2].size);
  const std::int64_t experts = y[0].size(), samples = y[1].size(), width = y[3].size();
  const std::vector<std::int64_t> index = {samples, y[2].size() * experts, 1};
  const std::vector<std::int64_t> wide = {samples, y[2].size() * experts, width};
  const std::vector<std::int64_t> experts_last = {1, 2, 0, 3};
  const Slot prob = k.call("aten::gather", {Slot{1}, std::int64_t{1}, rows.token});
  const Slot weight =
      cast(k, k.call("aten::masked_fill.Scalar", {prob, rows.none, 0.0}), c.inputs[0].dtype);
  const Slot results = k.call("aten::permute", {Slot{0}, experts_last});
  const Slot weighted =
      k.call("aten::mul.Tensor", {results, k.call("aten::unsqueeze", {weight, std::int64_t{-1}})});
  const Slot token = k.call("aten::expand", {k.call("aten::reshape", {rows.token, index}), wide});
  const Slot zeros = k.call(
      "aten::zeros", {sizes_of(c.output_boxes[0]), c.inputs[0].dtype, NoValue(), RunDevice()});
  return k.finish({k.call("aten::scatter_add", {zeros, std::int64_t{1}, token,
                                                k.call("aten::reshape", {weighted, wide})})});
}

}  // namespace

const OpDef kMoeCombine = {
    .kind = "moe_combine",
    .summary = "Weighted sum of expert results: y [e, b, s', h], probs [b, s, e] -> [b, s, h]",
    .aten = "",
    .operands = {2, 2},
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
