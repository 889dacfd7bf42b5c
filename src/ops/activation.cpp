#include "ops/activation.h"

#include <fmt/format.h>

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

// Kernels know no kind: one function per composed activation.
Kernel quick_gelu(const KernelContext& c) {
  KernelBuilder k(c);
  return k.finish({activate(k, "quick_gelu", {0})});
}
Kernel relu_squared(const KernelContext& c) {
  KernelBuilder k(c);
  return k.finish({activate(k, "relu_squared", {0})});
}
Kernel gelu_tanh(const KernelContext& c) {
  KernelBuilder k(c);
  return k.finish({activate(k, "gelu_tanh", {0})});
}

constexpr OpDef pointwise(std::string_view kind, std::string_view summary, std::string_view aten,
                          Saved (*saved)(const OpContext&),
                          Kernel (*kernel)(const KernelContext&) = nullptr) {
  return {.kind = kind,
          .summary = summary,
          .aten = aten,
          .annotation = same_shape,
          .work = work,
          .saved = saved,
          .kernel = kernel,
          .examples = examples};
}

}  // namespace

Slot activate(KernelBuilder& k, std::string_view kind, Slot x) {
  if (kind == "identity") return x;
  if (kind == "gelu_tanh") return k.call("aten::gelu", {x, std::string("tanh")});
  if (kind == "quick_gelu") {
    const Slot gate = k.call("aten::sigmoid", {k.call("aten::mul.Scalar", {x, 1.702})});
    return k.call("aten::mul.Tensor", {x, gate});
  }
  if (kind == "relu_squared") return k.call("aten::square", {k.call("aten::relu", {x})});
  return k.call(fmt::format("aten::{}", kind), {x});
}

const OpDef kGelu = pointwise("gelu", "x Phi(x): [*] -> [*]", "aten::gelu", keep_input);
const OpDef kGeluTanh =
    pointwise("gelu_tanh", "GELU in its tanh approximation: [*] -> [*]", "", keep_input, gelu_tanh);
const OpDef kQuickGelu =
    pointwise("quick_gelu", "x sigmoid(1.702 x): [*] -> [*]", "", keep_input, quick_gelu);
const OpDef kSilu = pointwise("silu", "x sigmoid(x): [*] -> [*]", "aten::silu", keep_input);
const OpDef kRelu = pointwise("relu", "max(x, 0): [*] -> [*]", "aten::relu", keep_result);
const OpDef kReluSquared =
    pointwise("relu_squared", "max(x, 0)^2: [*] -> [*]", "", keep_input, relu_squared);
const OpDef kTanh = pointwise("tanh", "tanh(x): [*] -> [*]", "aten::tanh", keep_result);
const OpDef kSigmoid =
    pointwise("sigmoid", "1 / (1 + exp(-x)): [*] -> [*]", "aten::sigmoid", keep_result);

}  // namespace meshwright
