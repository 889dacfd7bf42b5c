// Operators that pick elements by index: gather, one-hot, top-k, and those whose number of results
// only data decide (they are taken at their largest).

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;
using Dims = std::vector<std::int64_t>;

Fact made(int type, Dims dims) { return {type, std::move(dims), nullptr, false, true}; }

Result gather(const NodeView& n) {
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{0}), n.rank(0));
  Dims result(n.dims(0).begin(), n.dims(0).begin() + static_cast<std::ptrdiff_t>(axis));
  result.insert(result.end(), n.dims(1).begin(), n.dims(1).end());
  result.insert(result.end(), n.dims(0).begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                n.dims(0).end());
  return {made(n.in(0).type, std::move(result))};
}

Result gather_elements(const NodeView& n) {
  if (n.rank(0) != n.rank(1)) throw Error("data and indices must have one rank");
  return {made(n.in(0).type, n.dims(1))};
}

Result gather_nd(const NodeView& n) {
  const std::int64_t batch = n.attr("batch_dims", std::int64_t{0});
  if (n.rank(1) < 1) throw Error("indices cannot be a scalar");
  const std::int64_t depth = n.dims(1).back();
  if (batch < 0 || batch >= n.rank(1) || depth < 0 || batch > n.rank(0) ||
      depth > n.rank(0) - batch) {
    throw Error(
        fmt::format("indices {} do not fit {}", shape_text(n.dims(1)), shape_text(n.dims(0))));
  }
  Dims result(n.dims(1).begin(), n.dims(1).end() - 1);
  result.insert(result.end(), n.dims(0).begin() + batch + depth, n.dims(0).end());
  return {made(n.in(0).type, std::move(result))};
}

Result one_hot(const NodeView& n) {
  const Fact& depth = n.in(1);
  if (!depth.known || depth.known->size() != 1)
    throw DependsOnData("the depth depends on data (operand 1)");
  const double size =
      depth.known->floating ? depth.known->floats[0] : static_cast<double>(depth.known->ints[0]);
  if (!(size >= 0 && size <= static_cast<double>(kMaxSize)))
    throw Error(fmt::format("a depth of {}", size));
  Dims result = n.dims(0);
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{-1}), n.rank(0) + 1);
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(axis),
                static_cast<std::int64_t>(size));
  return {made(n.in(2).type, std::move(result))};
}

Result top_k(const NodeView& n) {
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{-1}), n.rank(0));
  Dims k = n.has_attr("k") ? Dims{n.attr("k", std::int64_t{1})} : n.need_ints(1, "k");
  if (k.size() != 1 || k[0] < 0 || k[0] > n.dims(0)[axis]) {
    throw Error(fmt::format("the {} largest of {}", shape_text(k), n.dims(0)[axis]));
  }
  Dims result = n.dims(0);
  result[axis] = k[0];
  return {made(n.in(0).type, result), made(kInt64, result)};
}

Result non_zero(const NodeView& n) { return {made(kInt64, {n.rank(0), product(n.dims(0))})}; }

Result compress(const NodeView& n) {
  if (!n.has_attr("axis")) return {made(n.in(0).type, {product(n.dims(0))})};
  Dims result = n.dims(0);
  std::int64_t& dim = result[axis_in(n.attr("axis", std::int64_t{0}), n.rank(0))];
  dim = std::min(dim, product(n.dims(1)));
  return {made(n.in(0).type, std::move(result))};
}

Result unique(const NodeView& n) {
  Dims values = n.has_attr("axis") ? n.dims(0) : Dims{product(n.dims(0))};
  const std::size_t axis =
      n.has_attr("axis") ? axis_in(n.attr("axis", std::int64_t{0}), n.rank(0)) : 0;
  const Fact indices = made(kInt64, {values.empty() ? 1 : values[axis]});
  return {made(n.in(0).type, std::move(values)), indices, indices, indices};
}

Result multinomial(const NodeView& n) {
  return {made(static_cast<int>(n.attr("dtype", std::int64_t{kInt32})),
               {n.dims(0).empty() ? 1 : n.dims(0)[0], n.attr("sample_size", std::int64_t{1})})};
}

constexpr InferRow kRows[] = {
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"OneHot", one_hot},
    {"TopK", top_k},
    {"NonZero", non_zero},
    {"Compress", compress},
    {"Unique", unique},
    {"Multinomial", multinomial},
};

}  // namespace

std::span<const InferRow> index_rows() { return kRows; }

}  // namespace meshwright::onnx
