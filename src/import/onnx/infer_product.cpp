// Matrix products: MatMul, Gemm, Einsum, Det and the quantized kinds.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;
using Dims = std::vector<std::int64_t>;

// NumPy's rule: a vector is a row on the left, a column on the right, and vanishes from the result.
Dims matmul_dims(Dims a, Dims b) {
  if (a.empty() || b.empty()) throw Error("operands of a product cannot be scalars");
  const bool row = a.size() == 1;
  const bool column = b.size() == 1;
  if (row) a.insert(a.begin(), 1);
  if (column) b.push_back(1);
  if (a.back() != b[b.size() - 2]) {
    throw Error(fmt::format("inner sizes {} and {} differ: {} times {}", a.back(), b[b.size() - 2],
                            shape_text(a), shape_text(b)));
  }
  Dims result = broadcast({a.begin(), a.end() - 2}, {b.begin(), b.end() - 2});
  if (!row) result.push_back(a[a.size() - 2]);
  if (!column) result.push_back(b.back());
  return result;
}

Result matmul(const NodeView& n) {
  return {{n.in(0).type, matmul_dims(n.dims(0), n.dims(1)), nullptr, false, true}};
}
Result matmul_integer(const NodeView& n) {
  return {{kInt32, matmul_dims(n.dims(0), n.dims(1)), nullptr, false, true}};
}
// a, its scale and zero point, b, its scale and zero point, the result's scale and zero point.
Result matmul_quantized(const NodeView& n) {
  return {{n.in(7).type, matmul_dims(n.dims(0), n.dims(3)), nullptr, false, true}};
}

Result gemm(const NodeView& n) {
  if (n.rank(0) != 2 || n.rank(1) != 2) throw Error("both operands must be matrices");
  Dims a = n.dims(0);
  Dims b = n.dims(1);
  if (n.attr("transA", std::int64_t{0}) != 0) std::swap(a[0], a[1]);
  if (n.attr("transB", std::int64_t{0}) != 0) std::swap(b[0], b[1]);
  Dims result = matmul_dims(a, b);
  if (n.has(2) && broadcast(result, n.dims(2)) != result) {
    throw Error(fmt::format("operand {} does not fit the product {}", shape_text(n.dims(2)),
                            shape_text(result)));
  }
  return {{n.in(0).type, std::move(result), nullptr, false, true}};
}

Result einsum(const NodeView& n) {
  std::string equation = n.attr("equation", "");
  std::erase(equation, ' ');
  if (equation.find('.') != std::string::npos) throw Error("ellipses in an equation are not read");
  const std::size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow);
  std::map<char, std::int64_t> sizes;
  std::map<char, int> uses;
  std::size_t operand = 0;
  std::size_t dim = 0;
  for (std::size_t i = 0; i <= left.size(); ++i) {
    if (i == left.size() || left[i] == ',') {
      if (static_cast<std::int64_t>(dim) != n.rank(operand)) {
        throw Error(fmt::format("the equation gives operand {} {} dimensions, not {}", operand, dim,
                                n.rank(operand)));
      }
      ++operand;
      dim = 0;
      continue;
    }
    if (dim >= n.dims(operand).size()) throw Error("the equation does not fit its operands");
    const std::int64_t size = n.dims(operand)[dim++];
    std::int64_t& known = sizes.try_emplace(left[i], size).first->second;
    if (known == 1) known = size;
    if (size != known && size != 1) {
      throw Error(fmt::format("'{}' has sizes {} and {}", left[i], known, size));
    }
    ++uses[left[i]];
  }
  std::string right;
  if (arrow != std::string::npos) {
    right = equation.substr(arrow + 2);
  } else {
    for (const auto& [letter, count] : uses) {
      if (count == 1) right += letter;
    }
  }
  Fact result{n.in(0).type, {}, nullptr, false, true};
  for (const char letter : right) {
    if (!sizes.contains(letter)) throw Error(fmt::format("'{}' is in no operand", letter));
    result.dims.push_back(sizes[letter]);
  }
  return {result};
}

Result det(const NodeView& n) {
  Fact result{n.in(0).type, n.dims(0), nullptr, false, true};
  if (n.rank(0) < 2) throw Error("the operand must have rank 2 or more");
  result.dims.resize(result.dims.size() - 2);
  return {result};
}

constexpr InferRow kRows[] = {
    {"MatMul", matmul},
    {"MatMulInteger", matmul_integer},
    {"QLinearMatMul", matmul_quantized},
    {"Gemm", gemm},
    {"Einsum", einsum},
    {"Det", det},
};

}  // namespace

std::span<const InferRow> product_rows() { return kRows; }

}  // namespace meshwright::onnx
