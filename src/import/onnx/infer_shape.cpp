// Operators that move elements without computing: reshape, transpose, slice, concat, pad, …

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;
using Dims = std::vector<std::int64_t>;

Fact made(int type, Dims dims) { return {type, std::move(dims), nullptr, false, true}; }

Result reshape(const NodeView& n) {
  const Dims wanted = n.has_attr("shape") ? *n.attr_ints("shape") : n.need_ints(1, "result sizes");
  const bool zero_is_size = n.attr("allowzero", std::int64_t{0}) != 0;
  const Dims& from = n.dims(0);
  Dims result;
  std::ptrdiff_t open = -1;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::int64_t size = wanted[i];
    if (size == 0 && !zero_is_size) {
      if (i >= from.size())
        throw Error(fmt::format("size 0 copies dimension {}, which the operand lacks", i));
      size = from[i];
    }
    if (size < -1) throw Error(fmt::format("a size of {}", size));
    if (size == -1) {
      if (open >= 0) throw Error(fmt::format("two sizes are open: {}", shape_text(wanted)));
      open = static_cast<std::ptrdiff_t>(i);
      size = 1;
    }
    result.push_back(size);
  }
  const std::int64_t have = product(from);
  const std::int64_t need = product(result);
  if (open >= 0 && need > 0 && have % need == 0)
    result[static_cast<std::size_t>(open)] = have / need;
  // A first size that is the batch at export stands for the batch.
  if (product(result) != have && !result.empty() && result[0] == n.exported_batch) {
    Dims other = result;
    other[0] = n.batch;
    if (product(other) == have) result = std::move(other);
  }
  if (product(result) != have) {
    throw Error(fmt::format("{} has {} elements and cannot become {}", shape_text(from), have,
                            shape_text(wanted)),
                {}, "sizes baked in at export fit no other batch or sequence length");
  }
  return {made(n.in(0).type, std::move(result))};
}

Result flatten(const NodeView& n) {
  const std::int64_t axis = n.attr("axis", std::int64_t{1});
  const std::int64_t rank = n.rank(0);
  if (axis < -rank || axis > rank)
    throw Error(fmt::format("axis {} is outside of rank {}", axis, rank));
  const auto split = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  const std::span<const std::int64_t> dims = n.dims(0);
  return {made(n.in(0).type, {product(dims.first(split)), product(dims.subspan(split))})};
}

Result squeeze(const NodeView& n) {
  const auto axes = n.ints_of("axes", 1);
  std::vector<bool> gone(n.dims(0).size());
  for (std::size_t i = 0; i < gone.size(); ++i) gone[i] = !axes && n.dims(0)[i] == 1;
  if (axes) {
    for (const std::int64_t axis : *axes) {
      const std::size_t i = axis_in(axis, n.rank(0));
      if (n.dims(0)[i] != 1) {
        throw Error(fmt::format("dimension {} of {} is not 1", i, shape_text(n.dims(0))));
      }
      gone[i] = true;
    }
  }
  Dims result;
  for (std::size_t i = 0; i < gone.size(); ++i) {
    if (!gone[i]) result.push_back(n.dims(0)[i]);
  }
  return {made(n.in(0).type, std::move(result))};
}

Result unsqueeze(const NodeView& n) {
  const auto axes = n.ints_of("axes", 1);
  if (!axes) throw Error("axes are missing");
  const std::size_t rank = n.dims(0).size() + axes->size();
  if (rank > 64) throw Error(fmt::format("a result of rank {}", rank));
  std::vector<bool> fresh(rank);
  for (const std::int64_t axis : *axes)
    fresh[axis_in(axis, static_cast<std::int64_t>(rank))] = true;
  if (std::ranges::count(fresh, true) != static_cast<std::ptrdiff_t>(axes->size())) {
    throw Error("an axis is given twice");
  }
  Dims result;
  std::size_t next = 0;
  for (const bool f : fresh) result.push_back(f ? 1 : n.dims(0)[next++]);
  return {made(n.in(0).type, std::move(result))};
}

Result transpose(const NodeView& n) {
  const std::size_t rank = n.dims(0).size();
  Dims perm(rank);
  for (std::size_t i = 0; i < rank; ++i) perm[i] = static_cast<std::int64_t>(rank - 1 - i);
  if (const auto given = n.attr_ints("perm")) perm = *given;
  std::vector<bool> seen(rank);
  Dims result;
  for (const std::int64_t p : perm) {
    const std::size_t i = axis_in(p, n.rank(0));
    seen[i] = true;
    result.push_back(n.dims(0)[i]);
  }
  if (perm.size() != rank || std::ranges::count(seen, true) != static_cast<std::ptrdiff_t>(rank)) {
    throw Error(fmt::format("perm {} is no permutation of rank {}", shape_text(perm), rank));
  }
  return {made(n.in(0).type, std::move(result))};
}

Result expand(const NodeView& n) {
  return {made(n.in(0).type, broadcast(n.dims(0), n.need_ints(1, "result sizes")))};
}

Result tile(const NodeView& n) {
  Dims result = n.dims(0);
  if (n.opset < 6 && n.count() > 2) {  // One axis, tiled a number of times.
    const Dims axis = n.need_ints(2, "the axis");
    const Dims times_ = n.need_ints(1, "repeats");
    if (axis.size() != 1 || times_.size() != 1)
      throw Error("repeats and axis must be single numbers");
    std::int64_t& dim = result[axis_in(axis[0], n.rank(0))];
    dim = times(dim, times_[0]);
    return {made(n.in(0).type, std::move(result))};
  }
  const Dims repeats = n.need_ints(1, "repeats");
  if (repeats.size() != result.size()) {
    throw Error(fmt::format("{} repeats for rank {}", repeats.size(), result.size()));
  }
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = times(result[i], repeats[i]);
  return {made(n.in(0).type, std::move(result))};
}

Result concat(const NodeView& n) {
  if (n.count() == 0) throw Error("operand 0 is missing");
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{1}), n.rank(0));
  Dims result = n.dims(0);
  for (std::size_t i = 1; i < n.count(); ++i) {
    Dims other = n.dims(i);
    if (other.size() == result.size()) std::swap(other[axis], result[axis]);
    const bool fits =
        other.size() == result.size() &&
        std::ranges::equal(other, result,
                           [&, d = std::size_t{0}](std::int64_t a, std::int64_t b) mutable {
                             return d++ == axis || a == b;
                           });
    if (!fits) {
      throw Error(fmt::format("shapes {} and {} cannot be joined along axis {}",
                              shape_text(n.dims(0)), shape_text(n.dims(i)), axis));
    }
    result[axis] += other[axis];
    if (result[axis] > kMaxSize) throw Error("the joined dimension is larger than 2^40");
  }
  return {made(n.in(0).type, std::move(result))};
}

Result split(const NodeView& n) {
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{0}), n.rank(0));
  const std::int64_t whole = n.dims(0)[axis];
  const auto parts = static_cast<std::int64_t>(n.node.outputs.size());
  auto sizes = n.ints_of("split", 1);
  if (!sizes) {
    const std::int64_t count = n.attr("num_outputs", parts);
    if (count < 1 || count != parts)
      throw Error(fmt::format("{} parts for {} results", count, parts));
    const std::int64_t each = (whole + count - 1) / count;
    sizes.emplace();
    for (std::int64_t i = 0, left = whole; i < count; ++i, left -= each) {
      sizes->push_back(std::clamp<std::int64_t>(left, 0, each));
    }
  }
  std::int64_t sum = 0;
  for (const std::int64_t s : *sizes) {
    if (s < 0 || s > whole) throw Error(fmt::format("a part of size {} of {}", s, whole));
    sum += s;
  }
  if (sum != whole || static_cast<std::int64_t>(sizes->size()) != parts) {
    throw Error(fmt::format("parts {} of a dimension of {} into {} results", shape_text(*sizes),
                            whole, parts));
  }
  Result results;
  for (const std::int64_t s : *sizes) {
    results.push_back(made(n.in(0).type, n.dims(0)));
    results.back().dims[axis] = s;
  }
  return results;
}

Result slice(const NodeView& n) {
  const auto starts = n.ints_of("starts", 1);
  const auto ends = n.ints_of("ends", 2);
  if (!starts || !ends) throw Error("starts or ends are missing");
  const auto axes = n.ints_of("axes", 3);
  const auto steps = n.has(4) ? n.need_ints(4, "steps") : Dims(starts->size(), 1);
  if (ends->size() != starts->size() || steps.size() != starts->size() ||
      (axes && axes->size() != starts->size())) {
    throw Error("starts, ends, axes and steps differ in length");
  }
  Dims result = n.dims(0);
  for (std::size_t i = 0; i < starts->size(); ++i) {
    const std::size_t axis = axis_in(axes ? (*axes)[i] : static_cast<std::int64_t>(i), n.rank(0));
    const std::int64_t size = n.dims(0)[axis];
    const std::int64_t step = steps[i];
    if (step == 0) throw Error("a step of 0");
    const auto place = [&](std::int64_t at, std::int64_t low, std::int64_t high) {
      return std::clamp(at < 0 && at >= -size ? at + size : at, low, high);
    };
    std::int64_t count = 0;
    if (step > 0) {
      count = place((*ends)[i], 0, size) - place((*starts)[i], 0, size);
      count = count <= 0 ? 0 : (count - 1) / step + 1;
    } else {
      // An end far below zero means "down to the first element".
      const std::int64_t end = (*ends)[i] < -size ? -1 : place((*ends)[i], -1, size - 1);
      const std::int64_t start = (*starts)[i] < -size ? -1 : place((*starts)[i], -1, size - 1);
      count = start - end;
      const std::int64_t stride = step == INT64_MIN ? INT64_MAX : -step;
      count = count <= 0 ? 0 : (count - 1) / stride + 1;
    }
    result[axis] = count;
  }
  return {made(n.in(0).type, std::move(result))};
}

Result pad(const NodeView& n) {
  auto pads = n.ints_of(n.has_attr("paddings") ? "paddings" : "pads", 1);
  if (!pads) throw Error("pads are missing");
  Dims result = n.dims(0);
  Dims axes(result.size());
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<std::int64_t>(i);
  if (n.has(3)) axes = n.need_ints(3, "axes");
  if (pads->size() != 2 * axes.size()) {
    throw Error(fmt::format("{} pads for {} dimensions", pads->size(), axes.size()));
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (const std::int64_t p : {(*pads)[i], (*pads)[i + axes.size()]}) {
      if (std::abs(p) > kMaxSize) throw Error(fmt::format("a pad of {}", p));
      result[axis_in(axes[i], n.rank(0))] += p;
    }
  }
  return {made(n.in(0).type, std::move(result))};
}

Result center_crop_pad(const NodeView& n) {
  Dims result = n.dims(0);
  const Dims sizes = n.need_ints(1, "result sizes");
  const auto axes = n.attr_ints("axes");
  if (axes && axes->size() != sizes.size()) throw Error("sizes and axes differ in length");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    result[axis_in(axes ? (*axes)[i] : static_cast<std::int64_t>(i), n.rank(0))] = sizes[i];
  }
  return {made(n.in(0).type, std::move(result))};
}

Result shape(const NodeView& n) {
  const std::int64_t rank = n.rank(0);
  const auto place = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const std::int64_t start = place(n.attr("start", std::int64_t{0}));
  const std::int64_t end = place(n.attr("end", rank));
  Fact result = made(kInt64, {std::max<std::int64_t>(0, end - start)});
  Known known;
  for (std::int64_t i = start; i < end; ++i)
    known.ints.push_back(n.dims(0)[static_cast<std::size_t>(i)]);
  result.known = std::make_shared<Known>(std::move(known));
  return {result};
}

Result size(const NodeView& n) {
  Fact result = made(kInt64, {});
  result.known = std::make_shared<Known>(Known{false, {product(n.dims(0))}, {}});
  return {result};
}

Result constant(const NodeView& n) {
  for (const Attribute& a : n.node.attributes) {
    Known known;
    if (a.name == "value" && a.tensor) {
      Fact result = made(a.tensor->type, a.tensor->dims);
      result.known = a.tensor->known;
      return {result};
    }
    if (a.name == "sparse_value") throw Error("sparse constants are not read");
    const bool list = a.name == "value_ints" || a.name == "value_floats";
    known.floating = a.name == "value_float" || a.name == "value_floats";
    if (a.name == "value_int") known.ints = {a.i};
    if (a.name == "value_ints") known.ints = a.ints;
    if (a.name == "value_float") known.floats = {a.f};
    if (a.name == "value_floats") known.floats = a.floats;
    if (list || a.name == "value_int" || a.name == "value_float") {
      Fact result = made(known.floating ? kFloat : kInt64, {});
      const auto count = static_cast<std::int64_t>(known.size());
      if (list) result.dims = {count};
      if (count <= kMaxKnown) result.known = std::make_shared<Known>(std::move(known));
      return {result};
    }
    if (a.name == "value_string") return {made(kString, {})};
    if (a.name == "value_strings") {
      return {made(kString, {static_cast<std::int64_t>(a.strings.size())})};
    }
  }
  throw Error("a constant without a value");
}

Result constant_of_shape(const NodeView& n) {
  const Attribute* value = n.node.attribute("value");
  return {made(value != nullptr && value->tensor ? value->tensor->type : static_cast<int>(kFloat),
               n.need_ints(0, "result sizes"))};
}

Result random(const NodeView& n) {
  const auto dims = n.attr_ints("shape");
  if (!dims) throw Error("attribute 'shape' is missing");
  return {made(static_cast<int>(n.attr("dtype", std::int64_t{kFloat})), *dims)};
}

Result range(const NodeView& n) {
  double values[3];
  for (std::size_t i = 0; i < 3; ++i) {
    const Fact& fact = n.in(i);
    if (!fact.known || fact.known->size() != 1) {
      throw DependsOnData(fmt::format("the size of the result depends on data (operand {})", i));
    }
    values[i] =
        fact.known->floating ? fact.known->floats[0] : static_cast<double>(fact.known->ints[0]);
  }
  const double count = std::max(0.0, std::ceil((values[1] - values[0]) / values[2]));
  if (!(count <= static_cast<double>(kMaxSize)))
    throw Error(fmt::format("a range of {} elements", count));
  return {made(n.in(0).type, {static_cast<std::int64_t>(count)})};
}

constexpr InferRow kRows[] = {
    {"Reshape", reshape},
    {"Flatten", flatten},
    {"Squeeze", squeeze},
    {"Unsqueeze", unsqueeze},
    {"Transpose", transpose},
    {"Expand", expand},
    {"Tile", tile},
    {"Concat", concat},
    {"Split", split},
    {"Slice", slice},
    {"Pad", pad},
    {"CenterCropPad", center_crop_pad},
    {"Shape", shape},
    {"Size", size},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape},
    {"RandomNormal", random},
    {"RandomUniform", random},
    {"Range", range},
};

}  // namespace

std::span<const InferRow> shape_rows() { return kRows; }

}  // namespace meshwright::onnx
