#include <fmt/format.h>

#include <algorithm>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

const Dims& result_dims(Emitter& e, std::size_t k = 0) { return e.fact(e.node().outputs[k]).dims; }

// Dimensions of operand 0 whose size the node changes; ranks are equal.
std::vector<std::size_t> changed(Emitter& e, std::size_t k = 0) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < e.view().dims(0).size(); ++d) {
    if (e.view().dims(0)[d] != result_dims(e, k)[d]) dims.push_back(d);
  }
  return dims;
}

bool touches_batch(Emitter& e, const std::vector<std::size_t>& dims) {
  return std::ranges::any_of(dims, [&](std::size_t d) { return e.is_batch(0, d); });
}

void reshape(Emitter& e) { e.result(e.reshape(e.in(0), result_dims(e), e.node().outputs[0])); }

void transpose(Emitter& e) {
  const auto rank = e.view().rank(0);
  Dims perm;
  for (std::int64_t i = rank; i-- > 0;) perm.push_back(i);
  if (const auto given = e.view().attr_ints("perm")) {
    for (std::size_t i = 0; i < perm.size(); ++i) {
      perm[i] = static_cast<std::int64_t>(axis_in((*given)[i], rank));
    }
  }
  e.result(e.transpose(e.in(0), perm));
}

void expand(Emitter& e) { e.result(e.stretch(e.in(0), result_dims(e), e.node().outputs[0])); }

void tile(Emitter& e) {
  ValueId x = e.in(0);
  for (const std::size_t d : changed(e)) {
    if (e.is_batch(0, d)) return e.opaque();
  }
  for (const std::size_t d : changed(e)) {
    x = e.op("resample", {x},
             {{"fn", std::string("tile")},
              {"dims", Dims{static_cast<std::int64_t>(d)}},
              {"sizes", Dims{result_dims(e)[d]}},
              {"name", e.dim_of(e.node().outputs[0], d).name}});
  }
  e.result(x);
}

// Empty operands add nothing.
void concat(Emitter& e) {
  const std::size_t axis = axis_in(e.view().attr("axis", std::int64_t{1}), e.view().rank(0));
  std::vector<ValueId> inputs;
  bool batch = false;
  for (std::size_t i = 0; i < e.view().count(); ++i) {
    if (e.view().in(i).elements() == 0) continue;
    batch |= e.is_batch(i, axis);
    inputs.push_back(e.in(i));
  }
  if (batch || inputs.size() > 64) return e.opaque();
  if (inputs.size() == 1) return e.result(inputs[0]);
  e.result(e.op("concat", inputs, {{"dim", static_cast<std::int64_t>(axis)}}));
}

void split(Emitter& e) {
  const std::size_t axis = axis_in(e.view().attr("axis", std::int64_t{0}), e.view().rank(0));
  if (e.is_batch(0, axis)) return e.opaque();
  std::int64_t start = 0;
  for (std::size_t k = 0; k < e.node().outputs.size(); ++k) {
    const std::int64_t length = result_dims(e, k)[axis];
    if (e.is_used(k) && length == e.view().dims(0)[axis]) {
      e.result(k, e.in(0));
    } else if (e.is_used(k)) {
      if (length == 0) throw Error(fmt::format("result {} is empty", k));
      e.result(
          k,
          e.op("slice", {e.in(0)},
               {{"dim", static_cast<std::int64_t>(axis)}, {"start", start}, {"length", length}}));
    }
    start += length;
  }
}

void slice(Emitter& e) {
  const Dims starts = *e.view().ints_of("starts", 1);
  const auto axes = e.view().ints_of("axes", 3);
  const Dims steps = e.has(4) ? e.view().need_ints(4, "steps") : Dims(starts.size(), 1);
  if (touches_batch(e, changed(e))) return e.opaque();
  if (product(result_dims(e)) == 0) {
    throw Error(fmt::format("the result is empty: {}", shape_text(result_dims(e))));
  }
  ValueId x = e.in(0);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::size_t axis =
        axis_in(axes ? (*axes)[i] : static_cast<std::int64_t>(i), e.view().rank(0));
    const std::int64_t size = e.view().dims(0)[axis];
    const std::int64_t length = result_dims(e)[axis];
    const auto dim = static_cast<std::int64_t>(axis);
    if (steps[i] == 1) {
      if (length == size) continue;
      const std::int64_t start = starts[i] < 0 && starts[i] >= -size ? starts[i] + size : starts[i];
      x = e.op(
          "slice", {x},
          {{"dim", dim}, {"start", std::clamp<std::int64_t>(start, 0, size)}, {"length", length}});
    } else {
      x = e.op(
          "resample", {x},
          {{"fn", std::string("strided_slice")}, {"dims", Dims{dim}}, {"sizes", Dims{length}}});
    }
  }
  e.result(x);
}

// Whether new elements are zero.
bool pads_zeros(Emitter& e) {
  if (e.view().attr("mode", "constant") != "constant") return false;
  if (!e.has(2)) return e.view().attr("value", 0.0) == 0;
  const Fact& value = e.view().in(2);
  if (!value.known || value.known->size() != 1) return false;
  return value.known->floating ? value.known->floats[0] == 0 : value.known->ints[0] == 0;
}

void pad(Emitter& e) {
  const auto pads = e.view().ints_of(e.view().has_attr("paddings") ? "paddings" : "pads", 1);
  Dims axes;
  for (std::int64_t i = 0; i < e.view().rank(0); ++i) axes.push_back(i);
  if (e.has(3)) axes = e.view().need_ints(3, "axes");
  const bool crops = std::ranges::any_of(*pads, [](std::int64_t p) { return p < 0; });
  if (crops || touches_batch(e, changed(e))) return e.opaque();
  const bool zeros = pads_zeros(e);
  const std::string mode = e.view().attr("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap") {
    return e.opaque();
  }
  const std::string fn = mode + "_pad";
  ValueId x = e.in(0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t before = (*pads)[i];
    const std::int64_t after = (*pads)[i + axes.size()];
    if (before == 0 && after == 0) continue;
    const auto dim = static_cast<std::int64_t>(axis_in(axes[i], e.view().rank(0)));
    if (zeros) {
      x = e.op("pad", {x}, {{"dim", dim}, {"before", before}, {"after", after}});
    } else {
      const std::int64_t size = result_dims(e)[static_cast<std::size_t>(dim)];
      x = e.op("resample", {x}, {{"fn", fn}, {"dims", Dims{dim}}, {"sizes", Dims{size}}});
    }
  }
  e.result(x);
}

void gather(Emitter& e) {
  const std::size_t axis = axis_in(e.view().attr("axis", std::int64_t{0}), e.view().rank(0));
  if (e.is_batch(0, axis)) return e.opaque();
  const Fact& indices = e.view().in(1);
  if (indices.elements() == 0) throw Error("the indices are empty");
  if (e.is_matrix_parameter(0) && e.is_parameter(0) && axis == 0 && !indices.dims.empty()) {
    const std::string& table = e.node().inputs[0];
    const Dim rows = e.hint(table, 0).value_or(Dim{"positions", e.view().dims(0)[0], 1});
    const Dim columns = e.hint(table, 1).value_or(Dim{"hidden", e.view().dims(0)[1], 1});
    const ValueId weight = e.matrix(0, false, rows, columns);
    e.result(e.op("embedding", {e.in(1), weight}));
    return;
  }
  // One constant index: a slice without its dimension.
  if (indices.dims.empty() && indices.constant && indices.known && !indices.known->floating) {
    const std::size_t at = axis_in(indices.known->ints[0], e.view().dims(0)[axis]);
    const ValueId part = e.op("slice", {e.in(0)},
                              {{"dim", static_cast<std::int64_t>(axis)},
                               {"start", static_cast<std::int64_t>(at)},
                               {"length", std::int64_t{1}}});
    e.result(e.reshape(part, result_dims(e), e.node().outputs[0]));
    return;
  }
  e.result(e.op("gather", {e.in(0), e.in(1)}, {{"dim", static_cast<std::int64_t>(axis)}}));
}

// Same shape, along whole dims.
void over(Emitter& e, std::string fn, const Dims& dims) {
  e.result(e.op("over_dims", {e.in(0)}, {{"fn", std::move(fn)}, {"dims", dims}}));
}

void softmax(Emitter& e) {
  const bool coerced = e.view().opset < 13;  // Then all dims from the axis on are one.
  const std::int64_t rank = e.view().rank(0);
  const auto axis = static_cast<std::int64_t>(
      axis_in(e.view().attr("axis", std::int64_t{coerced ? 1 : -1}), rank));
  const std::string& op = e.node().op;
  if (op == "Softmax" && axis == rank - 1 && e.is_floating(0)) {
    e.result(e.op("softmax", {e.in(0)}));
    return;
  }
  Dims dims = {axis};
  for (std::int64_t d = axis + 1; coerced && d < rank; ++d) dims.push_back(d);
  over(e, op == "Softmax" ? "softmax" : op == "LogSoftmax" ? "log_softmax" : "hardmax", dims);
}

void cumulative(Emitter& e) {
  const Fact& axis = e.view().in(1);
  if (!axis.known || axis.known->floating || axis.known->size() != 1) return e.opaque();
  std::string fn = e.node().op == "CumSum" ? "cumsum" : "cumprod";
  for (const char* variant : {"exclusive", "reverse"}) {
    if (e.view().attr(variant, std::int64_t{0}) != 0) fn = fmt::format("{}_{}", variant, fn);
  }
  over(e, fn, {static_cast<std::int64_t>(axis_in(axis.known->ints[0], e.view().rank(0)))});
}

void triangle(Emitter& e) { over(e, "trilu", {-2, -1}); }

void resample(Emitter& e) {
  const std::vector<std::size_t> dims = changed(e);
  if (touches_batch(e, dims)) return e.opaque();
  if (dims.empty()) return e.result(e.in(0));
  Dims which;
  Dims sizes;
  for (const std::size_t d : dims) {
    which.push_back(static_cast<std::int64_t>(d));
    sizes.push_back(result_dims(e)[d]);
  }
  std::string fn = "resize";
  if (e.node().op == "DepthToSpace") fn = "depth_to_space";
  if (e.node().op == "SpaceToDepth") fn = "space_to_depth";
  e.result(e.op("resample", {e.in(0)}, {{"fn", fn}, {"dims", which}, {"sizes", sizes}}));
}

constexpr EmitRow kRows[] = {
    {"Reshape", reshape},
    {"Flatten", reshape},
    {"Squeeze", reshape},
    {"Unsqueeze", reshape},
    {"Transpose", transpose},
    {"Expand", expand},
    {"Tile", tile},
    {"Concat", concat},
    {"Split", split},
    {"Slice", slice},
    {"Pad", pad},
    {"Gather", gather},
    {"Softmax", softmax},
    {"LogSoftmax", softmax},
    {"Hardmax", softmax},
    {"CumSum", cumulative},
    {"CumProd", cumulative},
    {"Trilu", triangle},
    {"Resize", resample},
    {"Upsample", resample},
    {"DepthToSpace", resample},
    {"SpaceToDepth", resample},
};

}  // namespace

std::span<const EmitRow> shape_emitters() { return kRows; }

}  // namespace meshwright::onnx
