#include <fmt/format.h>

#include "base/error.h"
#include "ops/conv_kernel.h"
#include "ops/kernel_dims.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Convolutions that conv2d does not cover: any number of spatial dims, groups, dilation, unequal
// padding, transposed. Spatial dims stay whole; batch, output channels and input channels (a sum)
// split, of a grouped one only the batch.

struct Window {
  std::size_t axes;
  std::vector<std::int64_t> stride, dilation, padding, extra;
  std::int64_t groups;
  bool transposed;
};

std::vector<std::int64_t> list(const OpContext& c, std::string_view name, std::size_t count,
                               std::int64_t fallback) {
  if (!c.attrs.contains(name)) return std::vector<std::int64_t>(count, fallback);
  std::vector<std::int64_t> values = attr_ints(c.attrs, name);
  if (values.size() != count) {
    throw Error(
        fmt::format("attribute '{}' must have {} elements, not {}", name, count, values.size()));
  }
  return values;
}

Window window(const OpContext& c) {
  const int rank = c.inputs[0].rank();
  if (rank < 3 || c.inputs[1].rank() != rank) {
    throw Error(fmt::format("operands must have one rank, 3 or more: {} and {}",
                            to_string(c.inputs[0]), to_string(c.inputs[1])));
  }
  const auto axes = static_cast<std::size_t>(rank - 2);
  return {axes,
          list(c, "stride", axes, 1),
          list(c, "dilation", axes, 1),
          list(c, "padding", 2 * axes, 0),
          list(c, "output_padding", axes, 0),
          attr_int(c.attrs, "groups", 1),
          attr_bool(c.attrs, "transposed", false)};
}

std::string annotation(const OpContext& c) {
  const Window w = window(c);
  std::string image;
  std::string kernel;
  std::string result;
  for (std::size_t i = 0; i < w.axes; ++i) {
    image += fmt::format(" y{}^", i);
    kernel += fmt::format(" k{}^", i);
    result += fmt::format(" y{}'", i);
  }
  const std::string in = w.groups == 1 ? "i+" : "(g^ i^)";
  const std::string out = w.groups == 1 ? "o" : "(g^ o^)";
  const std::string weight = w.transposed ? fmt::format("{} {}", in, w.groups == 1 ? "o" : "o^")
                                          : fmt::format("{} {}", out, w.groups == 1 ? "i+" : "i^");
  return fmt::format("b {}{}, {}{}{} -> b {}{}", in, image, weight, kernel,
                     c.inputs.size() == 3 ? ", " + out : "", out, result);
}

// What the shapes leave open: group sizes.
std::vector<FactorSize> factor_sizes(const OpContext& c) {
  const Window w = window(c);
  if (w.groups == 1) return {};
  return {{"g", w.groups}};
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  const Window w = window(c);
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  for (std::size_t i = 0; i < w.axes; ++i) {
    const std::int64_t size = c.inputs[0].dims[2 + i].size;
    const std::int64_t extent = (c.inputs[1].dims[2 + i].size - 1) * w.dilation[i] + 1;
    const std::int64_t padding = w.padding[i] + w.padding[i + w.axes];
    Dim& dim = results[0].dims[2 + i];
    dim.unit = 1;
    if (w.transposed) {
      dim.size = (size - 1) * w.stride[i] + extent - padding + w.extra[i];
      continue;
    }
    if (size + padding < extent) {
      throw Error(
          fmt::format("window of {} is larger than the padded size of {}", extent, size + padding));
    }
    dim.size = (size + padding - extent) / w.stride[i] + 1;
  }
  return results;
}

// As a matrix product of windows with the filters of a group; transposed, of inputs with filters.
Work work(const OpContext& c) {
  const auto groups = static_cast<double>(attr_int(c.attrs, "groups", 1));
  const bool transposed = attr_bool(c.attrs, "transposed", false);
  const TensorType& rows = transposed ? c.inputs[0] : c.outputs[0];
  const auto channels = static_cast<double>(rows.dims[1].size);
  const double k = c.inputs[1].elements() / channels;
  return matmul_work(c, {groups, rows.elements() / channels, channels / groups, k},
                     /*b_is_parameter=*/true);
}

Saved saved(const OpContext&) { return {{0}, {}, Bytes(0)}; }

Kernel kernel(const KernelContext& c) {
  const Window w = window(op_context(c));
  const auto middle = w.padding.begin() + static_cast<std::ptrdiff_t>(w.axes);
  return conv_kernel(c, {w.stride,
                         w.dilation,
                         {w.padding.begin(), middle},
                         {middle, w.padding.end()},
                         w.extra,
                         w.groups,
                         w.transposed});
}

// Strides, windows and sizes are bounded so that products stay below 2^62.
constexpr AttrSpec kAttrs[] = {
    {"stride", AttrType::kInts, false, 1, 1048576},
    {"dilation", AttrType::kInts, false, 1, 1048576},
    {"padding", AttrType::kInts, false, -1048576, 1048576},  // All begins, then all ends.
    {"output_padding", AttrType::kInts, false, 0, 1048576},
    {"groups", AttrType::kInt, false, 1, 1048576},
    {"transposed", AttrType::kBool},
};

std::vector<OpDef::Example> examples() {
  const TensorType image{DType::kBf16,
                         {{"batch", 4}, {"channels", 8}, {"height", 16}, {"width", 8}}};
  const TensorType depthwise{DType::kBf16,
                             {{"channels", 8}, {"one", 1}, {"kernel_y", 3}, {"kernel_x", 3}}};
  const TensorType dense{DType::kBf16,
                         {{"filters", 8}, {"channels", 8}, {"kernel_y", 3}, {"kernel_x", 3}}};
  const TensorType bias{DType::kBf16, {{"channels", 8}}};
  const TensorType line{DType::kF32, {{"batch", 2}, {"channels", 8}, {"width", 20}}};
  const TensorType filter{DType::kF32, {{"filters", 6}, {"channels", 8}, {"kernel", 4}}};
  const auto ints = [](std::vector<std::int64_t> v) { return Attr(std::move(v)); };
  return {
      {{{"groups", std::int64_t{8}}, {"padding", ints({1, 1, 1, 1})}}, {image, depthwise, bias}},
      {{{"dilation", ints({2, 1})}, {"padding", ints({0, 1, 1, 2})}}, {image, dense}},
      {{{"stride", ints({2})}}, {line, filter}},
      {{{"transposed", true}, {"stride", ints({2, 2})}, {"output_padding", ints({1, 0})}},
       {image, dense, bias}}};
}

}  // namespace

const OpDef kConv = {
    .kind = "conv",
    .summary = "Convolution: x [b, in, *], w [out, in, *] (transposed: [in, out, *]) (bias [out])",
    .operands = {2, 3},
    .attrs = kAttrs,
    .annotation = annotation,
    .factor_sizes = factor_sizes,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
