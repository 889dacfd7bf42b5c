#include <fmt/format.h>

#include "base/error.h"
#include "base/spelling.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

[[noreturn]] void wrong_kind(std::string_view name, std::string_view wanted) {
  throw Error(fmt::format("attribute '{}' must be {}", name, wanted));
}

}  // namespace

double Fact::elements() const {
  double product = 1;
  for (const std::int64_t dim : dims) product *= static_cast<double>(dim);
  return product;
}

const Fact& NodeView::in(std::size_t i) const {
  if (!has(i)) throw Error(fmt::format("operand {} is missing", i));
  if (!inputs_[i]->tensor) throw Error(fmt::format("operand {} is no tensor", i));
  return *inputs_[i];
}

std::optional<std::vector<std::int64_t>> NodeView::ints(std::size_t i) const {
  if (!has(i) || !in(i).known) return std::nullopt;
  if (in(i).known->floating) throw Error(fmt::format("operand {} must hold integers", i));
  return in(i).known->ints;
}

std::vector<std::int64_t> NodeView::need_ints(std::size_t i, std::string_view what) const {
  in(i);
  auto values = ints(i);
  if (!values) throw DependsOnData(fmt::format("{} depend on data (operand {})", what, i));
  return std::move(*values);
}

std::int64_t NodeView::attr(std::string_view name, std::int64_t fallback) const {
  const Attribute* a = node.attribute(name);
  if (a == nullptr) return fallback;
  if (a->kind != Attribute::Kind::kInt) wrong_kind(name, "an integer");
  return a->i;
}

double NodeView::attr(std::string_view name, double fallback) const {
  const Attribute* a = node.attribute(name);
  if (a == nullptr) return fallback;
  if (a->kind != Attribute::Kind::kFloat) wrong_kind(name, "a number");
  return a->f;
}

std::string NodeView::attr(std::string_view name, const char* fallback) const {
  const Attribute* a = node.attribute(name);
  if (a == nullptr) return fallback;
  if (a->kind != Attribute::Kind::kString) wrong_kind(name, "text");
  return a->s;
}

std::optional<std::vector<std::int64_t>> NodeView::attr_ints(std::string_view name) const {
  const Attribute* a = node.attribute(name);
  if (a == nullptr) return std::nullopt;
  if (a->kind != Attribute::Kind::kInts) wrong_kind(name, "a list of integers");
  return a->ints;
}

std::optional<std::vector<std::int64_t>> NodeView::ints_of(std::string_view attribute,
                                                           std::size_t operand) const {
  if (has_attr(attribute)) return attr_ints(attribute);
  if (!has(operand)) return std::nullopt;
  return need_ints(operand, fmt::format("{} ", attribute).substr(0, attribute.size()));
}

std::size_t axis_in(std::int64_t axis, std::int64_t rank) {
  if (axis < -rank || axis >= rank) {
    throw Error(fmt::format("axis {} is outside of rank {}", axis, rank));
  }
  return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > (std::int64_t{1} << 53)) {
    throw Error(fmt::format("{} times {} is more than 2^53", a, b));
  }
  return result;
}

std::int64_t product(std::span<const std::int64_t> dims) {
  std::int64_t result = 1;
  for (const std::int64_t dim : dims) {
    if (dim == 0) return 0;
  }
  for (const std::int64_t dim : dims) result = times(result, dim);
  return result;
}

std::string shape_text(std::span<const std::int64_t> dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::vector<std::int64_t> broadcast(const std::vector<std::int64_t>& a,
                                    const std::vector<std::int64_t>& b) {
  std::vector<std::int64_t> result(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 1; i <= result.size(); ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) {
      throw Error(fmt::format("shapes {} and {} do not fit", shape_text(a), shape_text(b)));
    }
    result[result.size() - i] = x == 1 ? y : x;
  }
  return result;
}

}  // namespace meshwright::onnx
