#include <fmt/format.h>

#include "base/error.h"
#include "ops/conv_kernel.h"
#include "ops/kernel_dims.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Where windows tile the image (patch embeddings) rows and columns are groups of whole windows and
// split exactly. Elsewhere neighbouring parts overlap: halo factors, and a result of its own size.

struct Window {
  std::int64_t kernel, stride, padding;
  bool tiles(std::int64_t size) const {
    return padding == 0 && stride == kernel && size % kernel == 0;
  }
};

std::int64_t entry(const OpContext& c, std::string_view name, std::size_t axis,
                   std::int64_t fallback) {
  const auto it = c.attrs.find(name);
  if (it == c.attrs.end()) return fallback;
  if (const auto* both = std::get_if<std::int64_t>(&it->second)) return *both;
  const std::vector<std::int64_t> list = attr_ints(c.attrs, name);
  if (list.size() != 2) throw Error(fmt::format("attribute '{}' must have 2 elements", name));
  return list[axis];
}

// The window along height (axis 0) or width (axis 1).
Window window(const OpContext& c, std::size_t axis) {
  for (const std::size_t operand : {0, 1}) {
    if (c.inputs[operand].rank() != 4) {
      throw Error(
          fmt::format("operand {} must have rank 4: {}", operand, to_string(c.inputs[operand])));
    }
  }
  const std::int64_t kernel = c.inputs[1].dims[2 + axis].size;
  const std::int64_t stated = entry(c, "kernel", axis, kernel);
  if (stated != kernel) {
    throw Error(fmt::format("attribute 'kernel' is {}, the weight's window {}", stated, kernel));
  }
  return {kernel, entry(c, "stride", axis, 1), entry(c, "padding", axis, 0)};
}

std::string annotation(const OpContext& c) {
  const char* image[] = {"y~", "x~"};
  const char* result[] = {"y'", "x'"};
  if (window(c, 0).tiles(c.inputs[0].dims[2].size)) image[0] = "(y p^)", result[0] = "y";
  if (window(c, 1).tiles(c.inputs[0].dims[3].size)) image[1] = "(x q^)", result[1] = "x";
  return fmt::format("b i+ {} {}, o i+ p^ q^{} -> b o {} {}", image[0], image[1],
                     c.inputs.size() == 3 ? ", o" : "", result[0], result[1]);
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  for (const std::size_t axis : {0, 1}) {
    const auto [kernel, stride, padding] = window(c, axis);
    const std::int64_t size = c.inputs[0].dims[2 + axis].size + 2 * padding;
    if (size < kernel) {
      throw Error(fmt::format("window of {} is larger than the padded image of {}", kernel, size));
    }
    Dim& dim = results[0].dims[2 + axis];
    dim.size = (size - kernel) / stride + 1;
    dim.unit = 1;
  }
  return results;
}

// Row r of the result reads rows r * stride - padding up to kernel more. Where the image has stride
// rows per row of the result, a part's own rows are those of its results but for the border.
std::optional<OpDef::HaloWidths> halo(const OpContext& c, std::string_view factor) {
  const std::size_t axis = factor == "y" ? 0 : 1;
  const auto [kernel, stride, padding] = window(c, axis);
  if (c.outputs.empty()) return std::nullopt;
  if (c.inputs[0].dims[2 + axis].size != c.outputs[0].dims[2 + axis].size * stride) {
    return std::nullopt;
  }
  return OpDef::HaloWidths{padding, std::max<std::int64_t>(kernel - stride - padding, 0)};
}

// As a matrix product of windows (im2col) with the filters.
Work work(const OpContext& c) {
  const double out = static_cast<double>(c.inputs[1].dims[0].size);
  const double k = c.inputs[1].elements() / out;
  return matmul_work(c, {1, c.outputs[0].elements() / out, out, k}, /*b_is_parameter=*/true);
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

Kernel kernel(const KernelContext& c) {
  ConvWindows windows;
  for (const std::size_t axis : {0, 1}) {
    const Window w = window(op_context(c), axis);
    windows.stride.push_back(w.stride);
    windows.dilation.push_back(1);
    windows.begin.push_back(w.padding);
    windows.end.push_back(w.padding);
  }
  return conv_kernel(c, windows);
}

constexpr AttrSpec kAttrs[] = {
    {"kernel", AttrType::kIntOrInts, false, 1, 1048576},
    {"stride", AttrType::kIntOrInts, false, 1, 1048576},
    {"padding", AttrType::kIntOrInts, false, 0, 1048576},
};

std::vector<OpDef::Example> examples() {
  const TensorType image{DType::kBf16,
                         {{"batch", 4}, {"channels", 2}, {"height", 16}, {"width", 8}}};
  const TensorType patch{DType::kBf16,
                         {{"hidden", 32}, {"channels", 2}, {"kernel_y", 4}, {"kernel_x", 4}}};
  const TensorType small{DType::kBf16,
                         {{"hidden", 32}, {"channels", 2}, {"kernel_y", 3}, {"kernel_x", 3}}};
  const TensorType bias{DType::kBf16, {{"hidden", 32}}};
  const std::vector<std::int64_t> four = {4, 4};
  return {{{{"stride", four}, {"kernel", std::int64_t{4}}}, {image, patch, bias}},
          {{{"stride", std::int64_t{4}}}, {image, patch}},
          {{{"padding", std::int64_t{1}}}, {image, small}}};
}

}  // namespace

const OpDef kConv2d = {
    .kind = "conv2d",
    .summary = "Convolution: x [b, in, y, x], w [out, in, p, q] (bias [out]) -> [b, out, y', x']",
    .operands = {2, 3},
    .attrs = kAttrs,
    .annotation = annotation,
    .halo = halo,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
