// Operators whose results have the shape of an operand, or of all operands broadcast together.

#include <fmt/format.h>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;

Fact like(const Fact& fact, int type) { return {type, fact.dims, nullptr, false, true}; }

Result same(const NodeView& n) { return {like(n.in(0), n.in(0).type)}; }
Result to_bool(const NodeView& n) { return {like(n.in(0), kBool)}; }

// Before opset 7 the second operand stretched only on request, from a given axis.
std::vector<std::int64_t> operand_shape(const NodeView& n) {
  if (n.opset < 7 && n.attr("broadcast", std::int64_t{0}) != 0) return n.dims(0);
  return broadcast(n.dims(0), n.dims(1));
}
Result binary(const NodeView& n) {
  return {{n.in(0).type, operand_shape(n), nullptr, false, true}};
}
Result compare(const NodeView& n) { return {{kBool, operand_shape(n), nullptr, false, true}}; }

Result variadic(const NodeView& n) {
  Fact result = like(n.in(0), n.in(0).type);
  for (std::size_t i = 1; i < n.count(); ++i) result.dims = broadcast(result.dims, n.dims(i));
  return {result};
}

Result where(const NodeView& n) {
  return {
      {n.in(1).type, broadcast(n.dims(0), broadcast(n.dims(1), n.dims(2))), nullptr, false, true}};
}

Result cast(const NodeView& n) {
  return {like(n.in(0), static_cast<int>(n.attr("to", std::int64_t{kFloat})))};
}
Result cast_like(const NodeView& n) { return {like(n.in(0), n.in(1).type)}; }

// "dtype" names the result's type, else it is the operand's.
Result with_dtype(const NodeView& n) {
  return {like(n.in(0), static_cast<int>(n.attr("dtype", std::int64_t{n.in(0).type})))};
}

Result dropout(const NodeView& n) {
  // Masks were of the data's type before opset 10.
  return {like(n.in(0), n.in(0).type), like(n.in(0), n.opset < 10 ? n.in(0).type : kBool)};
}

Result quantize(const NodeView& n) {
  int type = static_cast<int>(n.attr("output_dtype", std::int64_t{0}));
  if (type == 0) type = n.has(2) ? n.in(2).type : static_cast<int>(kUint8);
  return {like(n.in(0), type)};
}
Result dequantize(const NodeView& n) { return {like(n.in(0), n.in(1).type)}; }

Result dynamic_quantize(const NodeView& n) {
  return {like(n.in(0), kUint8),
          {kFloat, {}, nullptr, false, true},
          {kUint8, {}, nullptr, false, true}};
}

// Scale and shift per channel; older opsets give running statistics too.
Result batch_norm(const NodeView& n) {
  if (n.rank(0) < 2) throw Error("the operand must have rank 2 or more");
  Result results = {like(n.in(0), n.in(0).type)};
  for (std::size_t i = 1; i < n.node.outputs.size(); ++i) {
    results.push_back(like(n.in(i <= 2 ? i + 2 : i), n.in(3).type));
  }
  return results;
}

// Mean and reciprocal deviation have size 1 from the axis on.
Result layer_norm(const NodeView& n) {
  const std::size_t axis = axis_in(n.attr("axis", std::int64_t{-1}), n.rank(0));
  Fact statistics = like(n.in(0), static_cast<int>(n.attr("stash_type", std::int64_t{kFloat})));
  for (std::size_t i = axis; i < statistics.dims.size(); ++i) statistics.dims[i] = 1;
  return {like(n.in(0), n.in(0).type), statistics, statistics};
}

constexpr InferRow kRows[] = {
    {"Abs", same},
    {"Acos", same},
    {"Acosh", same},
    {"Asin", same},
    {"Asinh", same},
    {"Atan", same},
    {"Atanh", same},
    {"BitwiseNot", same},
    {"Ceil", same},
    {"Celu", same},
    {"Clip", same},
    {"Cos", same},
    {"Cosh", same},
    {"CumSum", same},
    {"CumProd", same},
    {"Elu", same},
    {"Erf", same},
    {"Exp", same},
    {"Floor", same},
    {"Gelu", same},
    {"GroupNormalization", same},
    {"HardSigmoid", same},
    {"HardSwish", same},
    {"Hardmax", same},
    {"Identity", same},
    {"InstanceNormalization", same},
    {"LRN", same},
    {"LeakyRelu", same},
    {"Log", same},
    {"LogSoftmax", same},
    {"LpNormalization", same},
    {"MeanVarianceNormalization", same},
    {"Mish", same},
    {"Neg", same},
    {"Not", same},
    {"PRelu", same},
    {"Reciprocal", same},
    {"Relu", same},
    {"ReverseSequence", same},
    {"RMSNormalization", same},
    {"RotaryEmbedding", same},
    {"Round", same},
    {"Scatter", same},
    {"ScatterElements", same},
    {"ScatterND", same},
    {"Selu", same},
    {"Shrink", same},
    {"Sigmoid", same},
    {"Sign", same},
    {"Sin", same},
    {"Sinh", same},
    {"Softmax", same},
    {"Softplus", same},
    {"Softsign", same},
    {"Sqrt", same},
    {"Swish", same},
    {"Tan", same},
    {"Tanh", same},
    {"TensorScatter", same},
    {"ThresholdedRelu", same},
    {"Trilu", same},
    {"Add", binary},
    {"BitShift", binary},
    {"BitwiseAnd", binary},
    {"BitwiseOr", binary},
    {"BitwiseXor", binary},
    {"Div", binary},
    {"Mod", binary},
    {"Mul", binary},
    {"Pow", binary},
    {"Sub", binary},
    {"And", compare},
    {"Equal", compare},
    {"Greater", compare},
    {"GreaterOrEqual", compare},
    {"Less", compare},
    {"LessOrEqual", compare},
    {"Or", compare},
    {"Xor", compare},
    {"Max", variadic},
    {"Mean", variadic},
    {"Min", variadic},
    {"Sum", variadic},
    {"Where", where},
    {"IsInf", to_bool},
    {"IsNaN", to_bool},
    {"Cast", cast},
    {"CastLike", cast_like},
    {"Bernoulli", with_dtype},
    {"EyeLike", with_dtype},
    {"RandomNormalLike", with_dtype},
    {"RandomUniformLike", with_dtype},
    {"Dropout", dropout},
    {"QuantizeLinear", quantize},
    {"DequantizeLinear", dequantize},
    {"DynamicQuantizeLinear", dynamic_quantize},
    {"BatchNormalization", batch_norm},
    {"LayerNormalization", layer_norm},
};

}  // namespace

std::span<const InferRow> elementwise_rows() { return kRows; }

}  // namespace meshwright::onnx
