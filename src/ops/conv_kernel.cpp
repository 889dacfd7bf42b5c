#include "ops/conv_kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/kernel_dims.h"

namespace meshwright {
namespace {

using Ints = std::vector<std::int64_t>;

// Rows of the operand that a part of the result reads, cut out and padded where they lie outside of
// the whole operand.
class Rows {
 public:
  Rows(const KernelContext& c, const ConvWindows& w) : padding(w.begin.size()), pads_(2 * axes(w)) {
    for (std::size_t i = 0; i < axes(w); ++i) fit(c, w, i);
  }

  Slot read(KernelBuilder& k, Slot x) const {
    for (const auto& [dim, begin, end] : cuts_) {
      x = k.call("aten::slice.Tensor", {x, dim, begin, end, std::int64_t{1}});
    }
    const bool pads = std::ranges::any_of(pads_, [](std::int64_t p) { return p != 0; });
    return pads ? k.call("aten::constant_pad_nd", {x, pads_, 0.0}) : x;
  }

  Ints padding;  // What the convolution itself pads, both ends.

 private:
  struct Cut {
    std::int64_t dim, begin, end;
  };

  static std::size_t axes(const ConvWindows& w) { return w.stride.size(); }

  void fit(const KernelContext& c, const ConvWindows& w, std::size_t i) {
    const Interval in = c.input_boxes[0][2 + i];
    const Interval out = c.output_boxes[0][2 + i];
    const std::int64_t size = c.inputs[0].dims[2 + i].size;
    const bool whole = in.size() == size && out.size() == c.outputs[0].dims[2 + i].size;
    if (whole && w.begin[i] == w.end[i] && w.begin[i] >= 0) {
      padding[i] = w.begin[i];
      return;
    }
    const std::int64_t extent = (c.inputs[1].dims[2 + i].size - 1) * w.dilation[i] + 1;
    const std::int64_t first = out.begin * w.stride[i] - w.begin[i];
    const std::int64_t last = (out.end - 1) * w.stride[i] - w.begin[i] + extent;
    const Interval read = {std::clamp(first, in.begin, in.end), std::clamp(last, in.begin, in.end)};
    const std::int64_t before = std::clamp<std::int64_t>(read.begin - first, 0, last - first);
    const std::int64_t after = last - first - before - read.size();
    MW_CHECK((before == 0 || in.begin == 0 || first >= size) &&
                 (after == 0 || in.end == size || last <= 0),
             "a part of a convolution lacks rows of its neighbours");
    if (read != in) {
      cuts_.push_back(
          {static_cast<std::int64_t>(2 + i), read.begin - in.begin, read.end - in.begin});
    }
    // The list begins with the last dim.
    pads_[2 * (axes(w) - 1 - i)] = before;
    pads_[2 * (axes(w) - 1 - i) + 1] = after;
  }

  std::vector<Cut> cuts_;
  Ints pads_;
};

}  // namespace

Kernel conv_kernel(const KernelContext& c, const ConvWindows& w) {
  const std::size_t axes = w.stride.size();
  if (axes > 3) {
    throw Error(fmt::format("a convolution over {} dims cannot be run", axes), {},
                "1 to 3 spatial dims");
  }
  KernelBuilder k(c);
  // A sum over input channels adds the bias once.
  const bool bias = c.inputs.size() == 3 && c.part == 0;
  const bool empty =
      is_empty(c.input_boxes[0]) || is_empty(c.input_boxes[1]) || is_empty(c.output_boxes[0]);
  const Ints zeros(axes);
  Slot y;
  bool add_bias = bias;
  if (empty) {
    y = k.call("aten::new_zeros", {Slot{0}, sizes_of(c.output_boxes[0])});
  } else if (w.transposed) {
    // Padding of a transposed convolution cuts its result; rows that nothing reaches are zero.
    // In bfloat16 libtorch 1.13 runs it as if it were not transposed (mkldnn on CPUs).
    const Slot x = k.call("aten::to.dtype", {Slot{0}, DType::kF32});
    const Slot weight = k.call("aten::to.dtype", {Slot{1}, DType::kF32});
    y = k.call("aten::convolution",
               {x, weight, NoValue{}, w.stride, zeros, w.dilation, true, zeros, w.groups});
    Ints pads;
    for (std::size_t i = axes; i-- > 0;) {
      const std::int64_t extent = (c.inputs[1].dims[2 + i].size - 1) * w.dilation[i] + 1;
      const std::int64_t full = (c.inputs[0].dims[2 + i].size - 1) * w.stride[i] + extent;
      if (w.begin[i] > full || w.end[i] - w.extra[i] > full) {
        throw Error(fmt::format("padding of {} and {} cuts off all {} rows of the result",
                                w.begin[i], w.end[i], full));
      }
      pads.push_back(-w.begin[i]);
      pads.push_back(w.extra[i] - w.end[i]);
    }
    y = k.call("aten::constant_pad_nd", {y, pads, 0.0});
  } else {
    const Rows rows(c, w);
    const Slot x = rows.read(k, {0});
    y = k.call("aten::convolution", {x, Slot{1}, bias ? KernelArg(Slot{2}) : KernelArg(NoValue{}),
                                     w.stride, rows.padding, w.dilation, false, zeros, w.groups});
    add_bias = false;
  }
  if (add_bias) {
    const std::int64_t channels = c.input_boxes[2][0].size();
    y = k.call("aten::add.Tensor", {y, along_channels(k, {2}, channels, c.inputs[0].rank())});
  }
  return k.finish({y});
}

}  // namespace meshwright
