#include <fmt/format.h>

#include <algorithm>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

const Dims& result_dims(Emitter& e) { return e.fact(e.node().outputs[0]).dims; }

Dims sizes_of(const TensorType& type) {
  Dims sizes;
  for (const Dim& dim : type.dims) sizes.push_back(dim.size);
  return sizes;
}

// x times a matrix parameter [k, n] (or [n, k] when `transposed`), as a linear layer.
ValueId linear(Emitter& e, ValueId x, std::size_t weight, bool transposed,
               std::optional<std::size_t> bias) {
  const Dims& w = e.view().dims(weight);
  const std::int64_t n = w[transposed ? 0 : 1];
  const std::string& out = e.node().outputs[0];
  const Dim inner = e.type(x).dims.back();
  const Dim outer = e.hint(out, result_dims(e).size() - 1).value_or(Dim{"features", n, 1});
  std::vector<ValueId> inputs = {x, e.matrix(weight, !transposed, outer, inner)};
  if (bias) inputs.push_back(e.vector(*bias, outer));
  return e.op("linear", std::move(inputs));
}

// The last two dims swapped.
ValueId swapped(Emitter& e, ValueId x) {
  Dims perm;
  for (std::size_t d = 0; d < e.type(x).dims.size(); ++d)
    perm.push_back(static_cast<std::int64_t>(d));
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return e.transpose(x, perm);
}

void matmul(Emitter& e) {
  if (!e.is_floating(0) || !e.is_floating(1)) return e.opaque();
  if (e.is_matrix_parameter(1) && e.view().rank(0) >= 2) {
    e.result(linear(e, e.in(0), 1, false, std::nullopt));
    return;
  }
  ValueId a = e.in(0);
  ValueId b = e.in(1);
  const Dims& result = result_dims(e);
  // Vectors become matrices; the extra dim goes at the end.
  Dims a_sizes = sizes_of(e.type(a));
  Dims b_sizes = sizes_of(e.type(b));
  Dims sizes = result;
  if (b_sizes.size() == 1) b_sizes.push_back(1), sizes.push_back(1);
  if (a_sizes.size() == 1) {
    a_sizes.insert(a_sizes.begin(), 1);
    sizes.insert(sizes.end() - 1, 1);
  }
  a = e.reshape(a, a_sizes, "");
  b = e.reshape(b, b_sizes, "");
  Dims batch(sizes.begin(), sizes.end() - 2);
  if (b_sizes.size() == 2 && a_sizes.size() > 2) {
    // One right side for all: a linear layer without a parameter.
    e.result(e.reshape(e.op("linear", {a, swapped(e, b)}), result, ""));
    return;
  }
  const auto whole = [&](const Dims& from) {
    Dims to = batch;
    to.insert(to.end(), from.end() - 2, from.end());
    return to;
  };
  a = e.stretch(a, whole(a_sizes), "");
  b = e.stretch(b, whole(b_sizes), "");
  e.result(e.reshape(e.op("matmul", {a, b}), result, ""));
}

// A product and its bias, fused.
void linear_layer(Emitter& e) {
  const bool transposed = e.view().attr("transB", std::int64_t{0}) != 0;
  const auto bias = e.has(2) ? std::optional<std::size_t>(2) : std::nullopt;
  e.result(linear(e, e.in(0), 1, transposed, bias));
}

void gemm(Emitter& e) {
  if (!e.is_floating(0) || !e.is_floating(1)) return e.opaque();
  ValueId a = e.in(0);
  if (e.view().attr("transA", std::int64_t{0}) != 0) a = swapped(e, a);
  const bool transposed = e.view().attr("transB", std::int64_t{0}) != 0;
  const double alpha = e.view().attr("alpha", 1.0);
  const double beta = e.view().attr("beta", 1.0);
  const Dims& result = result_dims(e);
  const bool vector = e.has(2) && alpha == 1 && beta == 1 && !e.view().dims(2).empty() &&
                      e.view().in(2).elements() == static_cast<double>(result[1]) &&
                      e.view().dims(2).back() == result[1];
  const auto bias = vector ? std::optional<std::size_t>(2) : std::nullopt;
  ValueId y;
  if (e.is_matrix_parameter(1)) {
    y = linear(e, a, 1, transposed, bias);
  } else {
    const ValueId b = transposed ? e.in(1) : swapped(e, e.in(1));
    std::vector<ValueId> inputs = {a, b};
    if (bias) inputs.push_back(e.vector(2, e.type(b).dims[0]));
    y = e.op("linear", std::move(inputs));
  }
  if (alpha != 1 && std::abs(alpha) <= 1e30) y = e.op("scale", {y}, {{"factor", alpha}});
  if (e.has(2) && !vector && beta != 0) {
    ValueId c = e.in(2);
    if (beta != 1 && std::abs(beta) <= 1e30) c = e.op("scale", {c}, {{"factor", beta}});
    y = e.op("add", {y, c});
  }
  e.result(y);
}

// A contraction of two operands as one batched product: letters of both sides and the result are
// the batch, those of one side its rows (columns), those that the result lacks are summed.
void einsum(Emitter& e) {
  std::string equation = e.view().attr("equation", "");
  std::erase(equation, ' ');
  const std::size_t comma = equation.find(',');
  const std::size_t arrow = equation.find("->");
  if (e.view().count() != 2 || comma == std::string::npos || arrow == std::string::npos ||
      equation.find(',', comma + 1) != std::string::npos || !e.is_floating(0) ||
      !e.is_floating(1)) {
    return e.opaque();
  }
  const std::string a = equation.substr(0, comma);
  const std::string b = equation.substr(comma + 1, arrow - comma - 1);
  const std::string out = equation.substr(arrow + 2);
  const auto has = [](const std::string& letters, char c) {
    return letters.find(c) != std::string::npos;
  };
  std::string batch, rows, columns, summed;
  for (const char c : a) {
    if (std::ranges::count(a, c) != 1) return e.opaque();
    if (has(b, c)) {
      (has(out, c) ? batch : summed) += c;
    } else {
      rows += c;
      if (!has(out, c)) return e.opaque();
    }
  }
  for (const char c : b) {
    if (std::ranges::count(b, c) != 1 || (!has(a, c) && !has(out, c))) return e.opaque();
    if (!has(a, c)) columns += c;
  }
  const auto size = [&](char c) {
    return has(a, c) ? e.view().dims(0)[a.find(c)] : e.view().dims(1)[b.find(c)];
  };
  for (const char c : batch + summed) {
    if (e.view().dims(0)[a.find(c)] != e.view().dims(1)[b.find(c)]) return e.opaque();
  }
  // The operand with its letters in this order, each group of the last two merged into one dim.
  const auto arranged = [&](std::size_t operand, const std::string& from, const std::string& m,
                            const std::string& n) {
    Dims perm;
    Dims sizes;
    for (const char c : batch + m + n) perm.push_back(static_cast<std::int64_t>(from.find(c)));
    for (const char c : batch) sizes.push_back(size(c));
    for (const std::string& group : {m, n}) {
      Dims part;
      for (const char c : group) part.push_back(size(c));
      sizes.push_back(product(part));
    }
    return e.reshape(e.transpose(e.in(operand), perm), sizes, "");
  };
  const ValueId left = arranged(0, a, rows, summed);
  const ValueId right = arranged(1, b, summed, columns);
  ValueId y = e.op("matmul", {left, right});
  const std::string order = batch + rows + columns;
  Dims sizes;
  Dims perm;
  for (const char c : order) sizes.push_back(size(c));
  for (const char c : out) perm.push_back(static_cast<std::int64_t>(order.find(c)));
  e.result(e.transpose(e.reshape(y, sizes, ""), perm));
}

void reduce(Emitter& e) {
  static const std::pair<std::string_view, const char*> kFunctions[] = {
      {"ReduceL1", "l1"},          {"ReduceL2", "l2"},
      {"ReduceLogSum", "log_sum"}, {"ReduceLogSumExp", "log_sum_exp"},
      {"ReduceMax", "max"},        {"ReduceMean", "mean"},
      {"ReduceMin", "min"},        {"ReduceProd", "prod"},
      {"ReduceSum", "sum"},        {"ReduceSumSquare", "sum_square"},
      {"ArgMax", "argmax"},        {"ArgMin", "argmin"}};
  const std::string& op = e.node().op;
  const auto row =
      std::ranges::find(kFunctions, op, &std::pair<std::string_view, const char*>::first);
  const bool arg = op.starts_with("Arg");
  Dims dims;
  const auto axes = arg ? std::optional<Dims>(Dims{e.view().attr("axis", std::int64_t{0})})
                        : e.view().ints_of("axes", 1);
  if (axes && !axes->empty()) {
    for (const std::int64_t axis : *axes) {
      const auto d = static_cast<std::int64_t>(axis_in(axis, e.view().rank(0)));
      if (std::ranges::find(dims, d) == dims.end()) dims.push_back(d);
    }
  } else if (e.view().attr("noop_with_empty_axes", std::int64_t{0}) == 0) {
    for (std::int64_t d = 0; d < e.view().rank(0); ++d) dims.push_back(d);
  }
  std::ranges::sort(dims);
  const bool keep = e.view().attr("keepdims", std::int64_t{1}) != 0;
  if (dims.empty()) return e.result(e.in(0));
  if (op == "ReduceMean" && dims.size() == 1 && !keep && e.is_floating(0)) {
    return e.result(e.op("mean_pool", {e.in(0)}, {{"dim", dims[0]}}));
  }
  e.result(e.op("reduce", {e.in(0)},
                {{"fn", std::string(row->second)}, {"dims", dims}, {"keep", keep}}));
}

// Scores [N, C, d...]: classes go last. Without a reduction the loss has one element per label.
void cross_entropy(Emitter& e) {
  if (e.has(2) || e.is_used(1) || !e.is_floating(0)) return e.opaque();
  Dims perm;
  for (std::int64_t d = 0; d < e.view().rank(0); ++d) {
    if (d != 1) perm.push_back(d);
  }
  perm.push_back(1);
  ValueId loss = e.op("cross_entropy", {e.transpose(e.in(0), perm), e.in(1)});
  const std::string reduction = e.view().attr("reduction", "mean");
  if (reduction != "none") {
    Dims dims;
    for (std::int64_t d = 0; d + 1 < e.view().rank(0); ++d) dims.push_back(d);
    loss = e.op("reduce", {loss}, {{"fn", reduction}, {"dims", dims}});
  }
  e.result(loss);
}

constexpr EmitRow kRows[] = {
    {"MatMul", matmul},
    {"Linear", linear_layer},
    {"Gemm", gemm},
    {"Einsum", einsum},
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
    {"ArgMax", reduce},
    {"ArgMin", reduce},
    {"SoftmaxCrossEntropyLoss", cross_entropy},
};

}  // namespace

std::span<const EmitRow> product_emitters() { return kRows; }

}  // namespace meshwright::onnx
