// Reductions: ReduceSum and its kin, ArgMax, losses.

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;

Result reduce(const NodeView& n) {
  std::vector<bool> reduced(n.dims(0).size());
  const auto axes = n.ints_of("axes", 1);
  if (axes && !axes->empty()) {
    for (const std::int64_t axis : *axes) reduced[axis_in(axis, n.rank(0))] = true;
  } else if (n.attr("noop_with_empty_axes", std::int64_t{0}) == 0) {
    reduced.assign(reduced.size(), true);
  }
  const bool keep = n.attr("keepdims", std::int64_t{1}) != 0;
  Fact result{n.in(0).type, {}, nullptr, false, true};
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    if (!reduced[i]) result.dims.push_back(n.dims(0)[i]);
    if (reduced[i] && keep) result.dims.push_back(1);
  }
  return {result};
}

Result arg(const NodeView& n) {
  Fact result{kInt64, n.dims(0), nullptr, false, true};
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{0}), n.rank(0));
  if (n.attr("keepdims", std::int64_t{1}) != 0) {
    result.dims[axis] = 1;
  } else {
    result.dims.erase(result.dims.begin() + static_cast<std::ptrdiff_t>(axis));
  }
  return {result};
}

// Scores [N, C, d...] and labels [N, d...].
Result loss(const NodeView& n) {
  std::vector<std::int64_t> labels = n.dims(0);
  if (labels.size() < 2) throw Error("scores must have rank 2 or more");
  labels.erase(labels.begin() + 1);
  if (labels != n.dims(1)) {
    throw Error(fmt::format("labels {} do not fit scores {}", shape_text(n.dims(1)),
                            shape_text(n.dims(0))));
  }
  Fact result{n.in(0).type, {}, nullptr, false, true};
  if (n.attr("reduction", "mean") == "none") result.dims = labels;
  return {result, {n.in(0).type, n.dims(0), nullptr, false, true}};
}

constexpr InferRow kRows[] = {
    {"ReduceL1", reduce},
    {"ReduceL2", reduce},
    {"ReduceLogSum", reduce},
    {"ReduceLogSumExp", reduce},
    {"ReduceMax", reduce},
    {"ReduceMean", reduce},
    {"ReduceMin", reduce},
    {"ReduceProd", reduce},
    {"ReduceSum", reduce},
    {"ReduceSumSquare", reduce},
    {"ArgMax", arg},
    {"ArgMin", arg},
    {"SoftmaxCrossEntropyLoss", loss},
    {"NegativeLogLikelihoodLoss", loss},
};

}  // namespace

std::span<const InferRow> reduce_rows() { return kRows; }

}  // namespace meshwright::onnx
