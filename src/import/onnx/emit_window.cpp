#include <fmt/format.h>

#include <algorithm>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

Dims or_ones(std::optional<Dims> given, std::size_t count, std::int64_t fallback) {
  return given ? std::move(*given) : Dims(count, fallback);
}

// Begins, then ends, with automatic padding worked out.
Dims padding(Emitter& e, std::size_t axes, const Dims& stride, const Dims& extent) {
  Dims pads = or_ones(e.view().attr_ints("pads"), 2 * axes, 0);
  const std::string mode = e.view().attr("auto_pad", "NOTSET");
  if (mode == "NOTSET" || mode.empty()) return pads;
  const Dims& result = e.fact(e.node().outputs[0]).dims;
  for (std::size_t i = 0; i < axes; ++i) {
    pads[i] = pads[i + axes] = 0;
    if (!mode.starts_with("SAME")) continue;
    const std::int64_t total = std::max<std::int64_t>(
        0, (result[2 + i] - 1) * stride[i] + extent[i] - e.view().dims(0)[2 + i]);
    const std::int64_t less = total / 2;
    pads[i] = mode == "SAME_LOWER" ? total - less : less;
    pads[i + axes] = total - pads[i];
  }
  return pads;
}

std::vector<Dim> weight_dims(Emitter& e, const Dim& in, const Dim& out, bool transposed) {
  std::vector<Dim> dims = {transposed ? in : out, transposed ? out : in};
  const Dims& w = e.view().dims(1);
  for (std::size_t i = 2; i < w.size(); ++i) dims.push_back({"kernel", w[i], 1});
  for (std::size_t i = 0; i < 2; ++i) {
    if (dims[i].size != w[i]) dims[i] = {w[i] == 1 ? "one" : "features", w[i], 1};
  }
  return dims;
}

void conv(Emitter& e) {
  if (!e.is_floating(0) || !e.is_floating(1)) return e.opaque();
  const bool transposed = e.node().op == "ConvTranspose";
  if (transposed &&
      (e.view().has_attr("output_shape") || e.view().attr("auto_pad", "NOTSET") != "NOTSET")) {
    return e.opaque();
  }
  const ValueId x = e.in(0);
  const std::size_t axes = e.view().dims(0).size() - 2;
  const Dims stride = or_ones(e.view().attr_ints("strides"), axes, 1);
  const Dims dilation = or_ones(e.view().attr_ints("dilations"), axes, 1);
  const std::int64_t groups = e.view().attr("group", std::int64_t{1});
  Dims extent;
  for (std::size_t i = 0; i < axes; ++i)
    extent.push_back((e.view().dims(1)[2 + i] - 1) * dilation[i] + 1);
  const Dims pads = padding(e, axes, stride, extent);
  const std::int64_t channels = e.fact(e.node().outputs[0]).dims[1];
  const Dim out = {"channels", channels, 1};
  std::vector<ValueId> inputs = {
      x, e.parameter(1, weight_dims(e, e.type(x).dims[1], out, transposed))};
  if (e.has(2)) inputs.push_back(e.vector(2, out));
  const bool even = std::equal(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(axes),
                               pads.begin() + static_cast<std::ptrdiff_t>(axes));
  const bool plain = std::ranges::all_of(dilation, [](std::int64_t d) { return d == 1; });
  const bool positive = std::ranges::all_of(pads, [](std::int64_t p) { return p >= 0; });
  if (!transposed && axes == 2 && groups == 1 && even && plain && positive) {
    e.result(e.op("conv2d", inputs, {{"stride", stride}, {"padding", Dims{pads[0], pads[1]}}}));
    return;
  }
  Attrs attrs = {{"stride", stride}, {"dilation", dilation}, {"padding", pads}, {"groups", groups}};
  if (transposed) {
    attrs["transposed"] = true;
    attrs["output_padding"] = or_ones(e.view().attr_ints("output_padding"), axes, 0);
  }
  e.result(e.op("conv", inputs, std::move(attrs)));
}

// The spatial dims of a pool, whole, even where their size stays.
void pool(Emitter& e) {
  if (e.is_used(1)) return e.opaque();
  const std::string& op = e.node().op;
  const Dims& x = e.view().dims(0);
  const Dims& y = e.fact(e.node().outputs[0]).dims;
  Dims dims;
  Dims sizes;
  std::int64_t window = 1;
  const auto kernel = e.view().attr_ints("kernel_shape");
  for (std::size_t d = 2; d < x.size(); ++d) {
    dims.push_back(static_cast<std::int64_t>(d));
    sizes.push_back(y[d]);
    window = times(window, op.starts_with("Global") || !kernel ? x[d] : (*kernel)[d - 2]);
  }
  const std::string fn = op.ends_with("MaxPool")  ? "max_pool"
                         : op.ends_with("LpPool") ? "lp_pool"
                                                  : "avg_pool";
  e.result(e.op("resample", {e.in(0)},
                {{"fn", fn},
                 {"dims", dims},
                 {"sizes", sizes},
                 {"window", std::min<std::int64_t>(window, std::int64_t{1} << 40)}}));
}

constexpr EmitRow kRows[] = {
    {"Conv", conv},   {"ConvTranspose", conv},     {"MaxPool", pool},       {"AveragePool", pool},
    {"LpPool", pool}, {"GlobalAveragePool", pool}, {"GlobalMaxPool", pool}, {"GlobalLpPool", pool},
};

}  // namespace

std::span<const EmitRow> window_emitters() { return kRows; }

}  // namespace meshwright::onnx
