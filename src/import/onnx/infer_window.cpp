// Operators that slide a window: convolutions and pooling, and resampling of images.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;
using Dims = std::vector<std::int64_t>;

// Attributes of a window over `axes` spatial dimensions, defaults filled in.
struct Window {
  Dims kernel, strides, dilations, pads;  // pads: all begins, then all ends.
  std::string auto_pad;
};

Dims per_axis(const NodeView& n, std::string_view name, std::size_t count, std::int64_t fallback,
              std::int64_t least) {
  auto given = n.attr_ints(name);
  Dims values = given ? std::move(*given) : Dims(count, fallback);
  if (values.size() != count) {
    throw Error(
        fmt::format("attribute '{}' must have {} elements, not {}", name, count, values.size()));
  }
  for (const std::int64_t v : values) {
    if (v < least || v > kMaxSize) throw Error(fmt::format("attribute '{}' is {}", name, v));
  }
  return values;
}

Window window(const NodeView& n, Dims kernel) {
  Window w;
  const std::size_t axes = kernel.size();
  w.kernel = std::move(kernel);
  for (const std::int64_t k : w.kernel) {
    if (k < 1 || k > kMaxSize) throw Error(fmt::format("a window of {} elements", k));
  }
  w.strides = per_axis(n, "strides", axes, 1, 1);
  w.dilations = per_axis(n, "dilations", axes, 1, 1);
  w.pads = per_axis(n, "pads", 2 * axes, 0, -kMaxSize);
  w.auto_pad = n.attr("auto_pad", "NOTSET");
  return w;
}

std::int64_t extent(const Window& w, std::size_t i) {
  return times(w.kernel[i] - 1, w.dilations[i]) + 1;
}

std::int64_t windows(const Window& w, std::size_t i, std::int64_t size, bool ceil) {
  if (w.auto_pad.starts_with("SAME")) return (size + w.strides[i] - 1) / w.strides[i];
  const bool valid = w.auto_pad == "VALID";
  const std::int64_t before = valid ? 0 : w.pads[i];
  const std::int64_t after = valid ? 0 : w.pads[i + w.kernel.size()];
  const std::int64_t room = size + before + after - extent(w, i);
  if (room < 0) {
    throw Error(fmt::format("a window of {} is larger than the padded size {}", extent(w, i),
                            size + before + after));
  }
  std::int64_t count = room / w.strides[i] + 1;
  if (ceil && room % w.strides[i] != 0) {
    ++count;
    // A window that would start in the padding at the end is left out.
    if ((count - 1) * w.strides[i] >= size + before) --count;
  }
  return count;
}

Dims spatial(const NodeView& n, std::size_t operand) {
  if (n.rank(operand) < 3) throw Error("the operand must have rank 3 or more");
  return {n.dims(operand).begin() + 2, n.dims(operand).end()};
}

Result conv_like(const NodeView& n, std::size_t weight, int type) {
  const Dims image = spatial(n, 0);
  if (n.rank(weight) != n.rank(0)) {
    throw Error(
        fmt::format("weights {} do not fit {}", shape_text(n.dims(weight)), shape_text(n.dims(0))));
  }
  const std::int64_t groups = n.attr("group", std::int64_t{1});
  if (groups < 1 || times(n.dims(weight)[1], groups) != n.dims(0)[1] ||
      n.dims(weight)[0] % groups != 0) {
    throw Error(fmt::format("weights {} in {} groups do not fit {}", shape_text(n.dims(weight)),
                            groups, shape_text(n.dims(0))));
  }
  const Window w = window(n, spatial(n, weight));
  Dims result = {n.dims(0)[0], n.dims(weight)[0]};
  for (std::size_t i = 0; i < image.size(); ++i) result.push_back(windows(w, i, image[i], false));
  return {{type, std::move(result), nullptr, false, true}};
}

Result conv(const NodeView& n) { return conv_like(n, 1, n.in(0).type); }
Result conv_integer(const NodeView& n) { return conv_like(n, 1, kInt32); }
Result conv_quantized(const NodeView& n) { return conv_like(n, 3, n.in(7).type); }

Result conv_transpose(const NodeView& n) {
  const Dims image = spatial(n, 0);
  if (n.rank(1) != n.rank(0) || n.dims(1)[0] != n.dims(0)[1]) {
    throw Error(
        fmt::format("weights {} do not fit {}", shape_text(n.dims(1)), shape_text(n.dims(0))));
  }
  const Window w = window(n, spatial(n, 1));
  const Dims extra = per_axis(n, "output_padding", image.size(), 0, 0);
  const auto stated = n.attr_ints("output_shape");
  Dims result = {n.dims(0)[0],
                 times(n.dims(1)[1], std::max<std::int64_t>(1, n.attr("group", std::int64_t{1})))};
  for (std::size_t i = 0; i < image.size(); ++i) {
    if (stated && stated->size() >= image.size()) {
      result.push_back((*stated)[stated->size() - image.size() + i]);
    } else if (w.auto_pad.starts_with("SAME")) {
      result.push_back(times(image[i], w.strides[i]));
    } else {
      result.push_back(times(image[i] - 1, w.strides[i]) + extra[i] + extent(w, i) - w.pads[i] -
                       w.pads[i + image.size()]);
    }
  }
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

// Its operand 1 is the weight, operand 2 the offsets.
Result deform_conv(const NodeView& n) { return conv_like(n, 1, n.in(0).type); }

Result pool(const NodeView& n) {
  const Dims image = spatial(n, 0);
  auto kernel = n.attr_ints("kernel_shape");
  if (!kernel || kernel->size() != image.size()) {
    throw Error("attribute 'kernel_shape' must have one element per spatial dimension");
  }
  const Window w = window(n, *kernel);
  const bool ceil = n.attr("ceil_mode", std::int64_t{0}) != 0;
  Dims result = {n.dims(0)[0], n.dims(0)[1]};
  for (std::size_t i = 0; i < image.size(); ++i) result.push_back(windows(w, i, image[i], ceil));
  return {{n.in(0).type, result, nullptr, false, true}, {kInt64, result, nullptr, false, true}};
}

Result global_pool(const NodeView& n) {
  Dims result = n.dims(0);
  spatial(n, 0);
  std::fill(result.begin() + 2, result.end(), 1);
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

Result unpool(const NodeView& n) {
  if (n.has(2)) {
    return {{n.in(0).type, n.need_ints(2, "result sizes"), nullptr, false, true}};
  }
  const Dims image = spatial(n, 0);
  auto kernel = n.attr_ints("kernel_shape");
  const Window w = window(n, kernel && kernel->size() == image.size() ? *kernel : image);
  Dims result = {n.dims(0)[0], n.dims(0)[1]};
  for (std::size_t i = 0; i < image.size(); ++i) {
    result.push_back(times(image[i] - 1, w.strides[i]) + w.kernel[i] - w.pads[i] -
                     w.pads[i + image.size()]);
  }
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

Result roi_pool(const NodeView& n) {
  spatial(n, 0);
  Dims result = {n.dims(1).empty() ? 1 : n.dims(1)[0], n.dims(0)[1]};
  if (const auto shape = n.attr_ints("pooled_shape")) {
    result.insert(result.end(), shape->begin(), shape->end());
  } else {
    result.push_back(n.attr("output_height", std::int64_t{1}));
    result.push_back(n.attr("output_width", std::int64_t{1}));
  }
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

Result grid_sample(const NodeView& n) {
  if (n.rank(0) < 3 || n.rank(1) != n.rank(0)) throw Error("image and grid must have one rank");
  Dims result = {n.dims(0)[0], n.dims(0)[1]};
  result.insert(result.end(), n.dims(1).begin() + 1, n.dims(1).end() - 1);
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

Result affine_grid(const NodeView& n) {
  Dims size = n.need_ints(1, "the grid's sizes");
  if (size.size() < 4) throw Error("the grid must have 4 or 5 sizes");
  size.erase(size.begin() + 1);
  size.push_back(static_cast<std::int64_t>(size.size()) - 1);
  return {{n.in(0).type, std::move(size), nullptr, false, true}};
}

std::int64_t scaled(std::int64_t size, double scale) {
  const double result = std::floor(static_cast<double>(size) * scale + 1e-9);
  if (!(scale > 0) || !(result <= static_cast<double>(kMaxSize))) {
    throw Error(fmt::format("a scale of {}", scale));
  }
  return static_cast<std::int64_t>(result);
}

// Scales as an attribute (Upsample 7), operand 1 (Upsample 9, Resize 10) or operands 2 and 3.
Result resize(const NodeView& n) {
  Dims result = n.dims(0);
  Dims axes(result.size());
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<std::int64_t>(i);
  if (const auto given = n.attr_ints("axes")) axes = *given;
  std::vector<double> scales;
  const std::size_t operand = n.count() > 2 ? 2 : 1;
  if (const Attribute* a = n.node.attribute("scales")) {
    scales = a->floats;
  } else if (n.has(operand) && n.in(operand).elements() > 0) {
    if (!n.in(operand).known || !n.in(operand).known->floating) {
      throw DependsOnData(fmt::format("scales depend on data (operand {})", operand));
    }
    scales = n.in(operand).known->floats;
  }
  const bool by_size = scales.empty();
  const Dims sizes = by_size ? n.need_ints(3, "result sizes") : Dims();
  if ((by_size ? sizes.size() : scales.size()) != axes.size()) {
    throw Error(fmt::format("{} scales or sizes for {} dimensions",
                            by_size ? sizes.size() : scales.size(), axes.size()));
  }
  const std::string policy = n.attr("keep_aspect_ratio_policy", "stretch");
  double ratio = -1;
  if (by_size && policy != "stretch") {
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const std::int64_t whole = n.dims(0)[axis_in(axes[i], n.rank(0))];
      const double s =
          static_cast<double>(sizes[i]) / static_cast<double>(std::max<std::int64_t>(1, whole));
      const bool better = policy == "not_larger" ? s < ratio : s > ratio;
      if (ratio < 0 || better) ratio = s;
    }
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = axis_in(axes[i], n.rank(0));
    if (!by_size) {
      result[axis] = scaled(n.dims(0)[axis], scales[i]);
    } else if (ratio < 0) {
      result[axis] = sizes[i];
    } else {
      result[axis] = static_cast<std::int64_t>(
          std::llround(std::min(static_cast<double>(n.dims(0)[axis]) * ratio, 1e15)));
    }
  }
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

Result depth_to_space(const NodeView& n) {
  const std::int64_t block = n.attr("blocksize", std::int64_t{1});
  if (n.rank(0) != 4 || block < 1 || block > kMaxSize || n.dims(0)[1] % times(block, block) != 0) {
    throw Error(fmt::format("blocks of {} do not fit {}", block, shape_text(n.dims(0))));
  }
  const Dims& d = n.dims(0);
  return {{n.in(0).type,
           {d[0], d[1] / (block * block), times(d[2], block), times(d[3], block)},
           nullptr,
           false,
           true}};
}

Result space_to_depth(const NodeView& n) {
  const std::int64_t block = n.attr("blocksize", std::int64_t{1});
  if (n.rank(0) != 4 || block < 1 || n.dims(0)[2] % block != 0 || n.dims(0)[3] % block != 0) {
    throw Error(fmt::format("blocks of {} do not fit {}", block, shape_text(n.dims(0))));
  }
  const Dims& d = n.dims(0);
  return {{n.in(0).type,
           {d[0], times(d[1], times(block, block)), d[2] / block, d[3] / block},
           nullptr,
           false,
           true}};
}

Result col2im(const NodeView& n) {
  const Dims image = n.need_ints(1, "image sizes");
  const Dims block = n.need_ints(2, "block sizes");
  const std::int64_t area = product(block);
  if (n.rank(0) != 3 || area < 1 || n.dims(0)[1] % area != 0) {
    throw Error(
        fmt::format("blocks of {} do not fit {}", shape_text(block), shape_text(n.dims(0))));
  }
  Dims result = {n.dims(0)[0], n.dims(0)[1] / area};
  result.insert(result.end(), image.begin(), image.end());
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

constexpr InferRow kRows[] = {
    {"Conv", conv},
    {"ConvInteger", conv_integer},
    {"QLinearConv", conv_quantized},
    {"ConvTranspose", conv_transpose},
    {"DeformConv", deform_conv},
    {"MaxPool", pool},
    {"AveragePool", pool},
    {"LpPool", pool},
    {"GlobalAveragePool", global_pool},
    {"GlobalMaxPool", global_pool},
    {"GlobalLpPool", global_pool},
    {"MaxUnpool", unpool},
    {"MaxRoiPool", roi_pool},
    {"RoiAlign", roi_pool},
    {"GridSample", grid_sample},
    {"AffineGrid", affine_grid},
    {"Resize", resize},
    {"Upsample", resize},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"Col2Im", col2im},
};

}  // namespace

std::span<const InferRow> window_rows() { return kRows; }

}  // namespace meshwright::onnx
