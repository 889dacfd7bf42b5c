#include <fmt/format.h>

#include <algorithm>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

struct NameRow {
  std::string_view op, fn;
};

// ONNX name -> function of the pointwise operator.
constexpr NameRow kUnary[] = {
    {"Abs", "abs"},
    {"Acos", "acos"},
    {"Acosh", "acosh"},
    {"Asin", "asin"},
    {"Asinh", "asinh"},
    {"Atan", "atan"},
    {"Atanh", "atanh"},
    {"Bernoulli", "bernoulli"},
    {"BitwiseNot", "bitwise_not"},
    {"Ceil", "ceil"},
    {"Celu", "celu"},
    {"Clip", "clamp"},
    {"Cos", "cos"},
    {"Cosh", "cosh"},
    {"Elu", "elu"},
    {"Erf", "erf"},
    {"Exp", "exp"},
    {"Floor", "floor"},
    {"HardSigmoid", "hardsigmoid"},
    {"HardSwish", "hardswish"},
    {"IsInf", "isinf"},
    {"IsNaN", "isnan"},
    {"LeakyRelu", "leaky_relu"},
    {"Log", "log"},
    {"Mish", "mish"},
    {"Neg", "neg"},
    {"Not", "logical_not"},
    {"RandomNormalLike", "rand_like"},
    {"RandomUniformLike", "rand_like"},
    {"Reciprocal", "reciprocal"},
    {"Round", "round"},
    {"Selu", "selu"},
    {"Shrink", "shrink"},
    {"Sign", "sign"},
    {"Sin", "sin"},
    {"Sinh", "sinh"},
    {"Softplus", "softplus"},
    {"Softsign", "softsign"},
    {"Sqrt", "sqrt"},
    {"Swish", "swish"},
    {"Tan", "tan"},
    {"ThresholdedRelu", "threshold"},
};

constexpr NameRow kMany[] = {
    {"BitShift", "bitwise_shift"},
    {"BitwiseAnd", "bitwise_and"},
    {"BitwiseOr", "bitwise_or"},
    {"BitwiseXor", "bitwise_xor"},
    {"Div", "div"},
    {"Mod", "remainder"},
    {"Pow", "pow"},
    {"Sub", "sub"},
    {"And", "logical_and"},
    {"Or", "logical_or"},
    {"Xor", "logical_xor"},
    {"Equal", "eq"},
    {"Greater", "gt"},
    {"GreaterOrEqual", "ge"},
    {"Less", "lt"},
    {"LessOrEqual", "le"},
    {"Max", "maximum"},
    {"Mean", "mean"},
    {"Min", "minimum"},
    {"Where", "where"},
};

template <std::size_t N>
std::string_view lookup(const NameRow (&rows)[N], const std::string& op) {
  const auto it = std::ranges::find(rows, op, &NameRow::op);
  MW_CHECK(it != std::end(rows), "no function for " + op);
  return it->fn;
}

std::string dtype_text(Emitter& e) {
  // The element type that the graph uses for the result's.
  const Fact& result = e.fact(e.node().outputs[0]);
  if (is_floating_type(result.type)) return std::string(dtype_name(e.options().dtype));
  if (result.type == kBool) return "bool";
  const int bits = element_bits(result.type);
  return bits > 32 ? "i64" : bits > 8 ? "i32" : "u8";
}

void unary(Emitter& e) {
  // Limits of Clip and the like are constants of the operator.
  e.result(e.op("pointwise", {e.in(0)},
                {{"fn", std::string(lookup(kUnary, e.node().op))}, {"dtype", dtype_text(e)}}));
}

// The operands, the second one with the dims that a stated axis (before opset 7) gives it.
std::vector<ValueId> operands(Emitter& e) {
  std::vector<ValueId> inputs;
  for (std::size_t i = 0; i < e.view().count(); ++i) inputs.push_back(e.in(i));
  const std::int64_t axis = e.view().attr("axis", std::int64_t{-1});
  if (inputs.size() == 2 && e.view().opset < 7 && e.view().has_attr("axis") && axis >= 0) {
    Dims sizes = e.view().dims(1);
    while (static_cast<std::int64_t>(sizes.size()) + axis < e.view().rank(0)) sizes.push_back(1);
    inputs[1] = e.reshape(inputs[1], sizes, "");
  }
  return inputs;
}

void many(Emitter& e) {
  std::string_view fn = lookup(kMany, e.node().op);
  // The remainder has the divisor's sign, or (always of floating-point numbers) the dividend's.
  if (fn == "remainder" && (e.view().attr("fmod", std::int64_t{0}) != 0 || e.is_floating(0))) {
    fn = "fmod";
  }
  e.result(e.pointwise(fn, operands(e)));
}

bool floating(Emitter& e, ValueId id) { return meshwright::is_floating(e.type(id).dtype); }

// Whether b's dims are a's, or 1, or absent.
bool stretches_to(const TensorType& b, const TensorType& a) {
  if (b.dims.size() > a.dims.size()) return false;
  for (std::size_t i = 0; i < b.dims.size(); ++i) {
    const std::int64_t size = b.dims[i].size;
    if (size != 1 && size != a.dims[i + a.dims.size() - b.dims.size()].size) return false;
  }
  return true;
}

ValueId two(Emitter& e, std::string_view kind, ValueId a, ValueId b) {
  if (floating(e, a) && floating(e, b)) {
    if (stretches_to(e.type(b), e.type(a))) return e.op(kind, {a, b});
    if (stretches_to(e.type(a), e.type(b))) return e.op(kind, {b, a});
  }
  return e.pointwise(kind, {a, b});
}

// Sums and products of any number of operands, two at a time.
void chain(Emitter& e, std::string_view kind) {
  const std::vector<ValueId> inputs = operands(e);
  ValueId total = inputs[0];
  for (std::size_t i = 1; i < inputs.size(); ++i) total = two(e, kind, total, inputs[i]);
  e.result(total);
}
void add(Emitter& e) { chain(e, "add"); }

// A factor that is a number of the model is no operand.
std::optional<double> number(Emitter& e, std::size_t i) {
  if (!e.has(i)) return std::nullopt;
  const Fact& f = e.view().in(i);
  if (!f.constant || !f.known || f.elements() != 1 ||
      f.dims.size() > e.fact(e.node().outputs[0]).dims.size()) {
    return std::nullopt;
  }
  return f.known->floating ? f.known->floats[0] : static_cast<double>(f.known->ints[0]);
}

bool scales(double factor) { return std::abs(factor) <= 1e30; }

void mul(Emitter& e) {
  for (const std::size_t i : {0, 1}) {
    const auto factor = number(e, i);
    const std::size_t other = 1 - i;
    if (!factor || !scales(*factor) || !e.has(other) || !e.is_floating(other)) continue;
    if (e.view().dims(other) != e.fact(e.node().outputs[0]).dims) continue;
    e.result(e.op("scale", {e.in(other)}, {{"factor", *factor}}));
    return;
  }
  chain(e, "mul");
}

void div(Emitter& e) {
  const auto divisor = number(e, 1);
  if (divisor && *divisor != 0 && scales(1 / *divisor) && e.is_floating(0) &&
      e.view().dims(0) == e.fact(e.node().outputs[0]).dims) {
    e.result(e.op("scale", {e.in(0)}, {{"factor", 1 / *divisor}}));
    return;
  }
  many(e);
}

// Activations with an operator of their own.
void activation(Emitter& e) {
  static constexpr NameRow kKinds[] = {{"Relu", "relu"},
                                       {"Sigmoid", "sigmoid"},
                                       {"Tanh", "tanh"},
                                       {"Gelu", "gelu"},
                                       {"Silu", "silu"}};
  const ValueId x = e.in(0);
  std::string kind(lookup(kKinds, e.node().op));
  if (kind == "gelu" && e.view().attr("approximate", "none") == "tanh") kind = "gelu_tanh";
  if (floating(e, x)) {
    e.result(e.op(kind, {x}));
  } else {
    e.result(e.op("pointwise", {x}, {{"fn", std::string("clamp")}, {"dtype", dtype_text(e)}}));
  }
}

void prelu(Emitter& e) {
  // The slope stretches to x only; a vector of slopes belongs to the channels.
  ValueId slope = e.in(1);
  const Dims& x = e.view().dims(0);
  if (!stretches_to(e.type(slope), e.type(e.in(0)))) {
    Dims sizes(x.size(), 1);
    if (x.size() < 2 || e.view().in(1).elements() != static_cast<double>(x[1])) {
      throw Error(
          fmt::format("slopes {} do not fit {}", shape_text(e.view().dims(1)), shape_text(x)));
    }
    sizes[1] = x[1];
    slope = e.reshape(slope, sizes, "");
  }
  e.result(e.pointwise("prelu", {e.in(0), slope}));
}

void cast(Emitter& e) {
  const ValueId x = e.in(0);
  const std::string to = dtype_text(e);
  if (dtype_name(e.type(x).dtype) == to) {
    e.count("casts and identities between equal element types removed");
    e.result(x);
    return;
  }
  e.result(e.op("pointwise", {x}, {{"fn", std::string("cast")}, {"dtype", to}}));
}

void identity(Emitter& e) {
  e.count("casts and identities between equal element types removed");
  e.result(e.in(0));
}

void dropout(Emitter& e) {
  if (e.is_used(1)) {
    e.opaque();
    return;
  }
  double p = e.view().attr("ratio", 0.5);
  if (const auto given = number(e, 1)) p = *given;
  if (e.options().dropout && p > 0 && p < 1 && e.is_floating(0)) {
    e.result(e.op("dropout", {e.in(0)}, {{"p", p}}));
    return;
  }
  e.count("dropouts left out");
  e.result(e.in(0));
}

// Scales and zero points of quantization stretch along the axis.
void quantize(Emitter& e) {
  if (!e.has(1) || e.view().in(1).elements() != 1) {
    e.opaque();
    return;
  }
  const bool down = e.node().op == "QuantizeLinear";
  e.result(e.op("pointwise", {e.in(0)},
                {{"fn", std::string(down ? "quantize" : "dequantize")}, {"dtype", dtype_text(e)}}));
}

constexpr EmitRow kRows[] = {
    {"Abs", unary},
    {"Acos", unary},
    {"Acosh", unary},
    {"Asin", unary},
    {"Asinh", unary},
    {"Atan", unary},
    {"Atanh", unary},
    {"Bernoulli", unary},
    {"BitwiseNot", unary},
    {"Ceil", unary},
    {"Celu", unary},
    {"Clip", unary},
    {"Cos", unary},
    {"Cosh", unary},
    {"Elu", unary},
    {"Erf", unary},
    {"Exp", unary},
    {"Floor", unary},
    {"HardSigmoid", unary},
    {"HardSwish", unary},
    {"IsInf", unary},
    {"IsNaN", unary},
    {"LeakyRelu", unary},
    {"Log", unary},
    {"Mish", unary},
    {"Neg", unary},
    {"Not", unary},
    {"RandomNormalLike", unary},
    {"RandomUniformLike", unary},
    {"Reciprocal", unary},
    {"Round", unary},
    {"Selu", unary},
    {"Shrink", unary},
    {"Sign", unary},
    {"Sin", unary},
    {"Sinh", unary},
    {"Softplus", unary},
    {"Softsign", unary},
    {"Sqrt", unary},
    {"Swish", unary},
    {"Tan", unary},
    {"ThresholdedRelu", unary},
    {"BitShift", many},
    {"BitwiseAnd", many},
    {"BitwiseOr", many},
    {"BitwiseXor", many},
    {"Mod", many},
    {"Pow", many},
    {"Sub", many},
    {"And", many},
    {"Or", many},
    {"Xor", many},
    {"Equal", many},
    {"Greater", many},
    {"GreaterOrEqual", many},
    {"Less", many},
    {"LessOrEqual", many},
    {"Max", many},
    {"Mean", many},
    {"Min", many},
    {"Where", many},
    {"Add", add},
    {"Sum", add},
    {"Mul", mul},
    {"Div", div},
    {"Relu", activation},
    {"Sigmoid", activation},
    {"Tanh", activation},
    {"Gelu", activation},
    {"Silu", activation},
    {"PRelu", prelu},
    {"Cast", cast},
    {"CastLike", cast},
    {"Identity", identity},
    {"Dropout", dropout},
    {"QuantizeLinear", quantize},
    {"DequantizeLinear", quantize},
};

}  // namespace

std::span<const EmitRow> elementwise_emitters() { return kRows; }

}  // namespace meshwright::onnx
