#include <fmt/format.h>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Normalizations of images [batch, channels, …] with a scale and a shift per channel. They differ
// in what the statistics range over: the batch (batch_norm), one channel of one sample
// (instance_norm), a group of channels of one sample (group_norm). Devices that hold parts of the
// batch compute statistics of their own part, as data-parallel training does by default.

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
    .aten = "aten::batch_norm",
    .operands = {5, 5},
    .attrs = kAttrs,
    .annotation = per_channel,
    .work = work,
    .saved = saved,
    .examples = batch_examples,
};

const OpDef kInstanceNorm = {
    .kind = "instance_norm",
    .summary = "Over space: x [b, c, *] (weight, bias [c]) -> [b, c, *]",
    .aten = "aten::instance_norm",
    .operands = {1, 3},
    .attrs = kAttrs,
    .annotation = per_channel,
    .work = work,
    .saved = saved,
    .examples = instance_examples,
};

const OpDef kGroupNorm = {
    .kind = "group_norm",
    .summary = "Over groups of channels and space: x [b, c, *] (weight, bias [c]) -> [b, c, *]",
    .aten = "aten::group_norm",
    .operands = {1, 3},
    .attrs = kGroupAttrs,
    .annotation = per_group,
    .factor_sizes = groups,
    .work = work,
    .saved = saved,
    .examples = group_examples,
};

}  // namespace meshwright
