#include <fmt/format.h>

#include "base/error.h"
#include "ops/moe_windows.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Sorts tokens by expert. Every device does so for its own tokens and all experts; the all-to-all
// that brings tokens to their experts is the reshard of the result from batch or sequence to
// experts. Sizes are those of the expected (balanced) load.
std::string annotation(const OpContext&) { return "b s h, b s e^ -> e^ b s' h"; }

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  const std::int64_t seq = c.inputs[0].dims[1].size;
  const std::int64_t experts = c.inputs[1].dims[2].size;
  const std::int64_t top_k = attr_int(c.attrs, "top_k", 1);
  if (top_k > experts) {
    throw Error(fmt::format("attribute 'top_k' is {}, with {} experts", top_k, experts));
  }
  results[0].dims[2].size = (seq * top_k + experts - 1) / experts;
  return results;
}

// One gather of rows forward, one scatter-add backward, and the sort that finds the order.
Work work(const OpContext& c) {
  Work work;
  work.forward_traffic = 2 * c.outputs[0].bytes() + c.inputs[1].bytes();
  work.backward_input_flops = Flops(c.outputs[0].elements());
  work.backward_traffic = c.outputs[0].bytes() + c.inputs[0].bytes();
  work.forward_kernels = 3;
  return work;
}

// The order of the tokens: one 4-byte index per row.
Saved saved(const OpContext& c) {
  const double top_k = static_cast<double>(attr_int(c.attrs, "top_k", 1));
  const double tokens = c.inputs[0].elements() / static_cast<double>(c.inputs[0].dims[2].size);
  return {{}, {}, Bytes(4 * top_k * tokens)};
}

constexpr AttrSpec kAttrs[] = {{"top_k", AttrType::kInt, true, 1, 1048576}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType probs{DType::kF32, {{"batch", 4}, {"seq", 16}, {"experts", 8}}};
  return {{{{"top_k", std::int64_t{2}}}, {x, probs}}, {{{"top_k", std::int64_t{1}}}, {x, probs}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Box& y = c.output_boxes[0];
  const ExpertRows rows = expert_rows(k, {1}, c.input_boxes[1], y[2], c.inputs[0].dims[1].size,
                                      c.outputs[0].dims[2].size);
  const std::int64_t experts = y[0].size(), samples = y[1].size(), width = y[3].size();
  const std::vector<std::int64_t> index = {samples, y[2].size() * experts, 1};
  const std::vector<std::int64_t> wide = {samples, y[2].size() * experts, width};
  const std::vector<std::int64_t> by_token = {samples, y[2].size(), experts, width};
  const std::vector<std::int64_t> experts_first = {2, 0, 1, 3};
  const Slot token = k.call("aten::expand", {k.call("aten::reshape", {rows.token, index}), wide});
  const Slot found = k.call("aten::reshape",
                            {k.call("aten::gather", {Slot{0}, std::int64_t{1}, token}), by_token});
  const Slot none = k.call("aten::unsqueeze", {rows.none, std::int64_t{-1}});
  const Slot filled = k.call("aten::masked_fill.Scalar", {found, none, 0.0});
  const Slot view = k.call("aten::permute", {filled, experts_first});
  return k.finish({k.call("aten::contiguous", {view})});
}

}  // namespace

const OpDef kMoeDispatch = {
    .kind = "moe_dispatch",
    .summary =
        "Tokens sorted by expert: x [b, s, h], probs [b, s, e] -> [e, b, ceil(s top_k / e), h]",
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
