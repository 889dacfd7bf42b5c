// Computes small tensors whose operands are known: the shape arithmetic of exporters. Every result
// has at most kMaxKnown elements; results' shapes were inferred before.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

std::int64_t checked(bool overflow, std::int64_t value) {
  if (overflow) throw Error("the arithmetic of constants overflows");
  return value;
}
std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  const bool overflow = __builtin_add_overflow(a, b, &r);
  return checked(overflow, r);
}
std::int64_t subtract(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  const bool overflow = __builtin_sub_overflow(a, b, &r);
  return checked(overflow, r);
}
std::int64_t multiply(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  const bool overflow = __builtin_mul_overflow(a, b, &r);
  return checked(overflow, r);
}
std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Error("a constant is divided by 0");
  return checked(a == INT64_MIN && b == -1, b == -1 ? 0 - a : a / b);
}
std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Error("a constant is divided by 0");
  if (b == -1) return 0;
  const std::int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// Rounds toward zero; what no integer can hold becomes the nearest that can.
std::int64_t to_int(double value) {
  if (std::isnan(value)) return 0;
  if (value >= 9.2e18) return INT64_MAX;
  if (value <= -9.2e18) return INT64_MIN;
  return static_cast<std::int64_t>(value);
}

using IntOp = std::int64_t (*)(std::int64_t, std::int64_t);
using FloatOp = double (*)(double, double);

struct BinaryRow {
  std::string_view op;
  IntOp on_ints;
  FloatOp on_floats;
};
constexpr BinaryRow kBinary[] = {
    {"Add", add, [](double a, double b) { return a + b; }},
    {"Sum", add, [](double a, double b) { return a + b; }},
    {"Sub", subtract, [](double a, double b) { return a - b; }},
    {"Mul", multiply, [](double a, double b) { return a * b; }},
    {"Div", divide, [](double a, double b) { return a / b; }},
    {"Mod", modulo, nullptr},
    {"Pow", nullptr, [](double a, double b) { return std::pow(a, b); }},
    {"Min", [](std::int64_t a, std::int64_t b) { return std::min(a, b); },
     [](double a, double b) { return std::min(a, b); }},
    {"Max", [](std::int64_t a, std::int64_t b) { return std::max(a, b); },
     [](double a, double b) { return std::max(a, b); }},
    {"And", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a != 0 && b != 0; },
     nullptr},
    {"Or", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a != 0 || b != 0; },
     nullptr},
    {"Xor", [](std::int64_t a, std::int64_t b) -> std::int64_t { return (a != 0) != (b != 0); },
     nullptr},
    {"Equal", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a == b; },
     [](double a, double b) -> double { return a == b; }},
    {"Less", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a < b; },
     [](double a, double b) -> double { return a < b; }},
    {"LessOrEqual", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a <= b; },
     [](double a, double b) -> double { return a <= b; }},
    {"Greater", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a > b; },
     [](double a, double b) -> double { return a > b; }},
    {"GreaterOrEqual", [](std::int64_t a, std::int64_t b) -> std::int64_t { return a >= b; },
     [](double a, double b) -> double { return a >= b; }},
};

struct UnaryRow {
  std::string_view op;
  double (*apply)(double);
};
constexpr UnaryRow kUnary[] = {
    {"Abs", [](double v) { return std::fabs(v); }},
    {"Neg", [](double v) { return -v; }},
    {"Floor", [](double v) { return std::floor(v); }},
    {"Ceil", [](double v) { return std::ceil(v); }},
    {"Sqrt", [](double v) { return std::sqrt(v); }},
    {"Exp", [](double v) { return std::exp(v); }},
    {"Log", [](double v) { return std::log(v); }},
    {"Round", [](double v) { return std::nearbyint(v); }},
    {"Reciprocal", [](double v) { return 1 / v; }},
    {"Not", [](double v) -> double { return v == 0; }},
};

double float_at(const Known& k, std::size_t i) {
  return k.floating ? k.floats[i] : static_cast<double>(k.ints[i]);
}

Known copy_elements(const Known& from, std::size_t count,
                    const std::function<std::size_t(std::size_t)>& source) {
  Known to;
  to.floating = from.floating;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = source(i);
    MW_CHECK(at < from.size(), "an element outside of its tensor");
    if (from.floating) {
      to.floats.push_back(from.floats[at]);
    } else {
      to.ints.push_back(from.ints[at]);
    }
  }
  return to;
}

// The coordinates of element `flat`.
Dims coordinates(std::size_t flat, const Dims& dims) {
  Dims at(dims.size());
  auto rest = static_cast<std::int64_t>(flat);
  for (std::size_t d = dims.size(); d-- > 0;) {
    at[d] = rest % dims[d];
    rest /= dims[d];
  }
  return at;
}
std::size_t flat_index(const Dims& at, const Dims& dims) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + at[d];
  return static_cast<std::size_t>(flat);
}

// The element of an operand that element `flat` of the broadcast result reads.
std::size_t broadcast_source(std::size_t flat, const Dims& result, const Dims& operand) {
  const Dims at = coordinates(flat, result);
  Dims from(operand.size());
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const std::int64_t place = at[d + at.size() - operand.size()];
    from[d] = operand[d] == 1 ? 0 : place;
  }
  return flat_index(from, operand);
}

Known stretch(const Fact& operand, const Dims& result, std::size_t count) {
  if (operand.dims.size() > result.size()) throw Error("a constant of higher rank than its result");
  return copy_elements(*operand.known, count,
                       [&](std::size_t i) { return broadcast_source(i, result, operand.dims); });
}

bool binary(const BinaryRow& row, const NodeView& n, const Dims& dims, std::size_t count,
            Known& out) {
  out = stretch(n.in(0), dims, count);
  for (std::size_t k = 1; k < n.count(); ++k) {
    const Known b = stretch(n.in(k), dims, count);
    const bool floating = out.floating || b.floating;
    if (floating ? row.on_floats == nullptr : row.on_ints == nullptr) return false;
    Known next;
    next.floating = floating;
    for (std::size_t i = 0; i < count; ++i) {
      if (floating) {
        next.floats.push_back(row.on_floats(float_at(out, i), float_at(b, i)));
      } else {
        next.ints.push_back(row.on_ints(out.ints[i], b.ints[i]));
      }
    }
    out = std::move(next);
  }
  return true;
}

Known gather(const NodeView& n, const Dims& dims, std::size_t count) {
  const Dims& data = n.dims(0);
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{0}), n.rank(0));
  const Dims& index_dims = n.dims(1);
  const Dims indices = n.need_ints(1, "indices");
  return copy_elements(*n.in(0).known, count, [&](std::size_t i) {
    const Dims at = coordinates(i, dims);
    const auto split = static_cast<std::ptrdiff_t>(axis);
    const auto wide = static_cast<std::ptrdiff_t>(index_dims.size());
    const Dims place(at.begin() + split, at.begin() + split + wide);
    std::int64_t index = indices[flat_index(place, index_dims)];
    index = static_cast<std::int64_t>(axis_in(index, data[axis]));
    Dims from(at.begin(), at.begin() + split);
    from.push_back(index);
    from.insert(from.end(), at.begin() + split + wide, at.end());
    return flat_index(from, data);
  });
}

Known slice(const NodeView& n, const Dims& dims, std::size_t count) {
  const Dims& data = n.dims(0);
  const auto starts = n.ints_of("starts", 1);
  const auto axes = n.ints_of("axes", 3);
  const Dims steps = n.has(4) ? n.need_ints(4, "steps") : Dims(starts->size(), 1);
  Dims first(data.size(), 0);
  Dims stride(data.size(), 1);
  for (std::size_t i = 0; i < starts->size(); ++i) {
    const std::size_t axis = axis_in(axes ? (*axes)[i] : static_cast<std::int64_t>(i), n.rank(0));
    const std::int64_t size = data[axis];
    const std::int64_t start = (*starts)[i];
    first[axis] = std::clamp<std::int64_t>(start < 0 && start >= -size ? start + size : start, 0,
                                           steps[i] < 0 ? size - 1 : size);
    stride[axis] = std::clamp(steps[i], -kMaxSize, kMaxSize);
  }
  return copy_elements(*n.in(0).known, count, [&](std::size_t i) {
    Dims at = coordinates(i, dims);
    for (std::size_t d = 0; d < at.size(); ++d) at[d] = first[d] + at[d] * stride[d];
    return flat_index(at, data);
  });
}

Known concat(const NodeView& n, const Dims& dims, std::size_t count) {
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{1}), n.rank(0));
  Known out;
  for (std::size_t k = 0; k < n.count(); ++k) out.floating |= n.in(k).known->floating;
  for (std::size_t i = 0; i < count; ++i) {
    Dims at = coordinates(i, dims);
    std::size_t k = 0;
    while (at[axis] >= n.dims(k)[axis]) at[axis] -= n.dims(k++)[axis];
    const std::size_t from = flat_index(at, n.dims(k));
    if (out.floating) {
      out.floats.push_back(float_at(*n.in(k).known, from));
    } else {
      out.ints.push_back(n.in(k).known->ints[from]);
    }
  }
  return out;
}

Known transpose(const NodeView& n, const Dims& dims, std::size_t count) {
  const auto perm = n.attr_ints("perm");
  return copy_elements(*n.in(0).known, count, [&](std::size_t i) {
    const Dims at = coordinates(i, dims);
    Dims from(at.size());
    for (std::size_t d = 0; d < at.size(); ++d) {
      from[perm ? axis_in((*perm)[d], n.rank(0)) : at.size() - 1 - d] = at[d];
    }
    return flat_index(from, n.dims(0));
  });
}

// Keeps the triangle above (or below) the k-th diagonal of the last two dims.
Known triangle(const NodeView& n, const Dims& dims, std::size_t count) {
  const bool upper = n.attr("upper", std::int64_t{1}) != 0;
  const Dims given = n.has(1) ? n.need_ints(1, "k") : Dims{0};
  if (given.size() != 1) throw Error("k must be one number");
  const std::int64_t k = std::clamp(given[0], -kMaxSize, kMaxSize);
  Known out = *n.in(0).known;
  for (std::size_t i = 0; i < count; ++i) {
    const Dims at = coordinates(i, dims);
    const std::int64_t off = at[at.size() - 1] - at[at.size() - 2];
    if (upper ? off >= k : off <= k) continue;
    if (out.floating) out.floats[i] = 0;
    if (!out.floating) out.ints[i] = 0;
  }
  return out;
}

bool reduce(const NodeView& n, Known& out) {
  const std::string& op = n.node.op;
  const Known& in = *n.in(0).known;
  if (in.floating || in.ints.empty() || n.dims(0).size() > 1) return false;
  std::int64_t result = in.ints[0];
  for (std::size_t i = 1; i < in.ints.size(); ++i) {
    if (op == "ReduceProd") result = multiply(result, in.ints[i]);
    if (op == "ReduceSum") result = add(result, in.ints[i]);
    if (op == "ReduceMax") result = std::max(result, in.ints[i]);
    if (op == "ReduceMin") result = std::min(result, in.ints[i]);
  }
  out.ints = {result};
  return true;
}

Known cast(const Known& in, int type) {
  Known out;
  out.floating = is_floating_type(type);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double value = float_at(in, i);
    if (out.floating) {
      out.floats.push_back(value);
    } else if (type == kBool) {
      out.ints.push_back(value != 0);
    } else {
      out.ints.push_back(in.floating ? to_int(value) : in.ints[i]);
    }
  }
  return out;
}

Known filled(const NodeView& n, std::size_t count) {
  Known out;
  const Attribute* value = n.node.attribute("value");
  const bool given = value != nullptr && value->tensor && value->tensor->known &&
                     value->tensor->known->size() == 1;
  const Known one = given ? *value->tensor->known : Known{true, {}, {0}};
  out.floating = one.floating;
  if (one.floating) out.floats.assign(count, one.floats[0]);
  if (!one.floating) out.ints.assign(count, one.ints[0]);
  return out;
}

Known range(const NodeView& n, std::size_t count) {
  Known out;
  out.floating = n.in(0).known->floating;
  for (std::size_t i = 0; i < count; ++i) {
    if (out.floating) {
      out.floats.push_back(float_at(*n.in(0).known, 0) +
                           static_cast<double>(i) * float_at(*n.in(2).known, 0));
    } else {
      out.ints.push_back(
          add(n.in(0).known->ints[0],
              multiply(static_cast<std::int64_t>(i), to_int(float_at(*n.in(2).known, 0)))));
    }
  }
  return out;
}

bool non_zero(const NodeView& n, Fact& result) {
  const Known& in = *n.in(0).known;
  Known out;
  std::vector<Dims> places;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (float_at(in, i) != 0) places.push_back(coordinates(i, n.dims(0)));
  }
  for (std::size_t d = 0; d < n.dims(0).size(); ++d) {
    for (const Dims& place : places) out.ints.push_back(place[d]);
  }
  result.dims[1] = static_cast<std::int64_t>(places.size());
  result.known = std::make_shared<Known>(std::move(out));
  return true;
}

bool split(const NodeView& n, std::vector<Fact>& results) {
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{0}), n.rank(0));
  std::int64_t before = 0;
  for (Fact& result : results) {
    result.known = std::make_shared<Known>(copy_elements(
        *n.in(0).known, static_cast<std::size_t>(result.elements()), [&](std::size_t i) {
          Dims at = coordinates(i, result.dims);
          at[axis] += before;
          return flat_index(at, n.dims(0));
        }));
    before += result.dims[axis];
  }
  return true;
}

bool one_result(const NodeView& n, const Fact& result, Known& out) {
  const std::string& op = n.node.op;
  const auto count = static_cast<std::size_t>(result.elements());
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, op) != names.end();
  };
  if (is_one_of({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}))
    return out = *n.in(0).known, true;
  if (op == "Cast" || op == "CastLike") return out = cast(*n.in(0).known, result.type), true;
  if (op == "Gather") return out = gather(n, result.dims, count), true;
  if (op == "Slice") return out = slice(n, result.dims, count), true;
  if (op == "Concat") return out = concat(n, result.dims, count), true;
  if (op == "Trilu" && result.dims.size() >= 2) return out = triangle(n, result.dims, count), true;
  if (op == "Transpose") return out = transpose(n, result.dims, count), true;
  if (op == "Expand") return out = stretch(n.in(0), result.dims, count), true;
  if (op == "ConstantOfShape") return out = filled(n, count), true;
  if (op == "Range") return out = range(n, count), true;
  if (is_one_of({"ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"})) return reduce(n, out);
  if (op == "Where") {
    const Known c = stretch(n.in(0), result.dims, count);
    const Known a = cast(stretch(n.in(1), result.dims, count), result.type);
    const Known b = cast(stretch(n.in(2), result.dims, count), result.type);
    out.floating = a.floating;
    for (std::size_t i = 0; i < count; ++i) {
      const Known& from = float_at(c, i) != 0 ? a : b;
      if (out.floating) {
        out.floats.push_back(from.floats[i]);
      } else {
        out.ints.push_back(from.ints[i]);
      }
    }
    return true;
  }
  for (const BinaryRow& row : kBinary) {
    if (row.op != op || (op == "Mod" && n.attr("fmod", std::int64_t{0}) != 0)) continue;
    if (!binary(row, n, result.dims, count, out)) return false;
    if (out.floating != is_floating_type(result.type)) out = cast(out, result.type);
    return true;
  }
  for (const UnaryRow& row : kUnary) {
    if (row.op != op) continue;
    out.floating = true;
    for (std::size_t i = 0; i < count; ++i)
      out.floats.push_back(row.apply(float_at(*n.in(0).known, i)));
    if (!is_floating_type(result.type)) out = cast(out, result.type);
    return true;
  }
  return false;
}

}  // namespace

bool evaluate(const NodeView& view, std::vector<Fact>& results) {
  double elements = 0;
  for (const Fact& result : results) elements += result.elements();
  if (!view.node.domain.empty() || elements > static_cast<double>(kMaxKnown)) return false;
  const std::string& op = view.node.op;
  if (op == "Shape" || op == "Size" || op == "Constant") return true;  // Inference knows them.
  for (std::size_t i = 0; i < view.count(); ++i) {
    if (!view.has(i) || !view.in(i).known) return false;
  }
  if (view.opset < 7 && view.has_attr("broadcast")) return false;
  if (op == "NonZero") return !view.dims(0).empty() && non_zero(view, results[0]);
  if (op == "Split") return split(view, results);
  if (results.size() != 1) return false;
  Known out;
  if (!one_result(view, results[0], out)) return false;
  MW_CHECK(static_cast<double>(out.size()) == results[0].elements(), "a constant of another size");
  results[0].known = std::make_shared<Known>(std::move(out));
  return true;
}

}  // namespace meshwright::onnx
