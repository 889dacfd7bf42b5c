#include <fmt/format.h>

#include "base/error.h"
#include "ops/kernel_dims.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Normalizations of images [batch, channels, …] with a scale and a shift per channel. They differ
// in what the statistics range over: the batch (batch_norm), one channel of one sample
// (instance_norm), a group of channels of one sample (group_norm). Devices that hold parts of the
// batch are priced as if they took statistics of their own part, as data-parallel training does by
// default.

std::string spatial(const OpContext& c) {
  if (c.inputs[0].rank() < 2) {
    throw Error(fmt::format("operand 0 must have rank 2 or more: {}", to_string(c.inputs[0])));
  }
  std::string dims;
  for (int i = 2; i < c.inputs[0].rank(); ++i) dims += fmt::format(" y{}^", i - 2);
  return dims;
}

std::string with_vectors(const OpContext& c, std::string_view channels) {
  const std::string image = fmt::format("b {}{}", channels, spatial(c));
  std::string text = image;
  for (std::size_t i = 1; i < c.inputs.size(); ++i) text += fmt::format(", {}", channels);
  return text + " -> " + image;
}

std::string per_channel(const OpContext& c) { return with_vectors(c, "c"); }
std::string per_group(const OpContext& c) { return with_vectors(c, "(g^ c^)"); }

std::vector<FactorSize> groups(const OpContext& c) {
  return {{"g", attr_int(c.attrs, "groups", 1)}};
}

Work work(const OpContext& c) {
  Work work = memory_work(c, 7, 1.5);
  work.backward_kernels = c.inputs.size() > 1 ? 2 : 1;
  return work;
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

Slot vector_of(KernelBuilder& k, const KernelContext& c, int operand) {
  return along_channels(k, {operand}, c.input_boxes[static_cast<std::size_t>(operand)][0].size(),
                        c.inputs[0].rank());
}

// With the statistics that the operands give, as in ONNX outside of its training mode: the rule
// splits the batch without a sum, so that a sample's result may depend on no other sample. They are
// state, which no gradient reaches. A variance below zero (drawn, not measured) counts as zero.
Kernel batch_kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const Slot weight = vector_of(k, c, 1);
  const Slot bias = vector_of(k, c, 2);
  const Slot mean = k.call("aten::detach", {vector_of(k, c, 3)});
  Slot variance = k.call("aten::detach", {vector_of(k, c, 4)});
  variance = k.call("aten::clamp_min", {variance, 0.0});
  variance = k.call("aten::add.Scalar", {variance, attr_float(c.attrs, "eps", 1e-5)});
  const Slot scale = k.call("aten::mul.Tensor", {weight, k.call("aten::rsqrt", {variance})});
  const Slot centred = k.call("aten::sub.Tensor", {Slot{0}, mean});
  const Slot scaled = k.call("aten::mul.Tensor", {centred, scale});
  return k.finish({k.call("aten::add.Tensor", {scaled, bias})});
}

// Layer normalization of each group of channels of a sample, then scale and shift per channel.
Kernel grouped_kernel(const KernelContext& c, std::int64_t groups) {
  const std::vector<std::int64_t> sizes = sizes_of(c.input_boxes[0]);
  std::int64_t count = groups == 0 ? 1 : sizes[1] / groups;
  for (std::size_t d = 2; d < sizes.size(); ++d) count *= sizes[d];
  using Ints = std::vector<std::int64_t>;
  KernelBuilder k(c);
  Slot y = k.call("aten::reshape", {Slot{0}, Ints{sizes[0], groups, count}});
  y = k.call("aten::layer_norm",
             {y, Ints{count}, NoValue{}, NoValue{}, attr_float(c.attrs, "eps", 1e-5), false});
  y = k.call("aten::reshape", {y, sizes});
  if (c.inputs.size() > 1) y = k.call("aten::mul.Tensor", {y, vector_of(k, c, 1)});
  if (c.inputs.size() > 2) y = k.call("aten::add.Tensor", {y, vector_of(k, c, 2)});
  return k.finish({y});
}
Kernel instance_kernel(const KernelContext& c) {
  return grouped_kernel(c, c.input_boxes[0][1].size());
}
Kernel group_kernel(const KernelContext& c) {
  return grouped_kernel(c, attr_int(c.attrs, "groups", 1));
}

constexpr AttrSpec kAttrs[] = {{"eps", AttrType::kFloat, false, 0, 1}};
constexpr AttrSpec kGroupAttrs[] = {{"eps", AttrType::kFloat, false, 0, 1},
                                    {"groups", AttrType::kInt, true, 1, 1048576}};

TensorType image() {
  return {DType::kBf16, {{"batch", 4}, {"channels", 8}, {"height", 8}, {"width", 4}}};
}
TensorType vector() { return {DType::kBf16, {{"channels", 8}}}; }

std::vector<OpDef::Example> batch_examples() {
  const TensorType rows{DType::kF32, {{"batch", 16}, {"features", 8}}};
  const TensorType v = vector();
  return {{{{"eps", 1e-5}}, {image(), v, v, v, v}}, {{}, {rows, v, v, v, v}}};
}
std::vector<OpDef::Example> instance_examples() {
  return {{{}, {image(), vector(), vector()}}, {{{"eps", 1e-5}}, {image()}}};
}
std::vector<OpDef::Example> group_examples() {
  return {{{{"groups", std::int64_t{4}}}, {image(), vector(), vector()}},
          {{{"groups", std::int64_t{1}}}, {image()}}};
}

}  // namespace

const OpDef kBatchNorm = {
    .kind = "batch_norm",
    .summary = "Over batch and space: x [b, c, *], weight, bias, mean, variance [c] -> [b, c, *]",
    .operands = {5, 5},
    .attrs = kAttrs,
    .annotation = per_channel,
    .work = work,
    .saved = saved,
    .kernel = batch_kernel,
    .examples = batch_examples,
};

const OpDef kInstanceNorm = {
    .kind = "instance_norm",
    .summary = "Over space: x [b, c, *] (weight, bias [c]) -> [b, c, *]",
    .operands = {1, 3},
    .attrs = kAttrs,
    .annotation = per_channel,
    .work = work,
    .saved = saved,
    .kernel = instance_kernel,
    .examples = instance_examples,
};

const OpDef kGroupNorm = {
    .kind = "group_norm",
    .summary = "Over groups of channels and space: x [b, c, *] (weight, bias [c]) -> [b, c, *]",
    .operands = {1, 3},
    .attrs = kGroupAttrs,
    .annotation = per_group,
    .factor_sizes = groups,
    .work = work,
    .saved = saved,
    .kernel = group_kernel,
    .examples = group_examples,
};

}  // namespace meshwright
