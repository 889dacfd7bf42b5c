#include "ops/ops.h"

namespace meshwright {
namespace {

// Pointwise activations. They differ only in which side of the function autograd keeps: the
// operand, or the result where the derivative is a function of it (PyTorch's derivatives.yaml).
Work work(const OpContext& c) { return memory_work(c, 8, 1.5); }
Saved keep_input(const OpContext&) { return {{0}, {}, Bytes(0)}; }
Saved keep_result(const OpContext&) { return {{}, {0}, Bytes(0)}; }

std::vector<OpDef::Example> examples() {
  return {{{}, {{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"ffn", 32}}}}},
          {{}, {{DType::kF32, {{"tokens", 8}}}}}};
}

constexpr OpDef pointwise(std::string_view kind, std::string_view summary, std::string_view aten,
                          Saved (*saved)(const OpContext&)) {
  return {.kind = kind,
          .summary = summary,
          .aten = aten,
          .annotation = same_shape,
          .work = work,
          .saved = saved,
          .examples = examples};
}

}  // namespace

const OpDef kGelu = pointwise("gelu", "x Phi(x): [*] -> [*]", "aten::gelu", keep_input);
const OpDef kGeluTanh =
    pointwise("gelu_tanh", "GELU in its tanh approximation: [*] -> [*]", "aten::gelu", keep_input);
const OpDef kQuickGelu = pointwise("quick_gelu", "x sigmoid(1.702 x): [*] -> [*]", "", keep_input);
const OpDef kSilu = pointwise("silu", "x sigmoid(x): [*] -> [*]", "aten::silu", keep_input);
const OpDef kRelu = pointwise("relu", "max(x, 0): [*] -> [*]", "aten::relu", keep_result);
const OpDef kReluSquared = pointwise("relu_squared", "max(x, 0)^2: [*] -> [*]", "", keep_input);
const OpDef kTanh = pointwise("tanh", "tanh(x): [*] -> [*]", "aten::tanh", keep_result);
const OpDef kSigmoid =
    pointwise("sigmoid", "1 / (1 + exp(-x)): [*] -> [*]", "aten::sigmoid", keep_result);

}  // namespace meshwright
