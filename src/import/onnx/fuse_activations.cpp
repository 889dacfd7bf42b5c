// GELU in both forms, SiLU and quick GELU, and biases of linear layers.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "import/onnx/fuse.h"

namespace meshwright::onnx {
namespace {

bool near(double a, double b) { return std::abs(a - b) <= 2e-3 * std::abs(b); }

// The other operand of a sum with a number.
std::optional<std::string> plus(const Rewriter& r, const std::string& name, double number) {
  const Node* sum = r.producer(name, "Add");
  for (std::size_t i = 0; sum != nullptr && i < 2; ++i) {
    if (r.is_number(sum->inputs[i], number)) return r.uncast(sum->inputs[1 - i]);
  }
  return std::nullopt;
}

bool is_all(const Product& p, double number, std::size_t times, const std::string& x) {
  return near(p.number, number) && p.factors.size() == times &&
         std::ranges::all_of(p.factors, [&](const std::string& f) { return f == x; });
}

// sqrt(2/pi) (x + 0.044715 x^3), in either of its usual arrangements.
bool is_tanh_argument(const Rewriter& r, const std::string& name, const std::string& x) {
  constexpr double kOuter = 0.7978845608;
  constexpr double kInner = 0.044715;
  const Product p = product_of(r, name);
  if (!near(p.number, kOuter)) return false;
  if (p.factors.size() == 1) {
    const Node* sum = r.producer(p.factors[0], "Add");
    for (std::size_t i = 0; sum != nullptr && i < 2; ++i) {
      if (r.uncast(sum->inputs[i]) == x && is_all(product_of(r, sum->inputs[1 - i]), kInner, 3, x))
        return true;
    }
    return false;
  }
  if (p.factors.size() != 2) return false;
  for (const std::size_t i : {0, 1}) {
    if (p.factors[i] != x) continue;
    const auto rest = plus(r, p.factors[1 - i], 1);
    if (rest && is_all(product_of(r, *rest), kInner, 2, x)) return true;
  }
  return false;
}

// The operator that x times `other`, times `number`, is; empty when it is none.
std::string gate_of(const Rewriter& r, double number, const std::string& x,
                    const std::string& other) {
  if (near(number, 1)) {
    if (const Node* gate = r.producer(other, "Sigmoid")) {
      const Product p = product_of(r, gate->inputs[0]);
      if (is_all(p, 1, 1, x)) return "silu";
      if (is_all(p, 1.702, 1, x)) return "quick_gelu";
    }
    return {};
  }
  if (!near(number, 0.5)) return {};
  const auto inner = plus(r, other, 1);
  if (!inner) return {};
  if (const Node* erf = r.producer(*inner, "Erf")) {
    return is_all(product_of(r, erf->inputs[0]), 0.70710678, 1, x) ? "gelu" : "";
  }
  const Node* tanh = r.producer(*inner, "Tanh");
  return tanh != nullptr && is_tanh_argument(r, tanh->inputs[0], x) ? "gelu_tanh" : "";
}

}  // namespace

void fuse_activations(Rewriter& r) {
  // From the end: the outermost product of a chain is the one to match.
  for (std::size_t i = r.count(); i-- > 0;) {
    const Node& node = r.node(i);
    if (r.removed(i) || node.outputs.empty() || !node.domain.empty() ||
        (node.op != "Mul" && node.op != "Div"))
      continue;
    const Product p = product_of(r, node.outputs[0]);
    if (p.factors.size() != 2) continue;
    for (const std::size_t k : {0, 1}) {
      const std::string x = p.factors[k];
      const std::string kind = gate_of(r, p.number, x, p.factors[1 - k]);
      if (kind.empty() || r.fact(x).dims != r.fact(node.outputs[0]).dims) continue;
      Node fused;
      fused.op = "Activation";
      fused.domain = kOwnDomain;
      fused.inputs = {x};
      fused.outputs = {node.outputs[0]};
      Attribute a;
      a.name = "kind";
      a.kind = Attribute::Kind::kString;
      a.s = kind;
      fused.attributes = {a};
      r.replace(std::move(fused), kind == "silu"         ? "SiLUs"
                                  : kind == "quick_gelu" ? "quick GELUs"
                                                         : "GELUs");
      break;
    }
  }
}

void fuse_biases(Rewriter& r) {
  for (std::size_t i = 0; i < r.count(); ++i) {
    if (r.removed(i) || r.node(i).op != "Add" || !r.node(i).domain.empty()) continue;
    const Node& add = r.node(i);
    for (const std::size_t k : {0, 1}) {
      const Node* product = r.only_producer(add.inputs[k], "MatMul");
      const std::string& bias = add.inputs[1 - k];
      if (product == nullptr || !r.is_parameter(bias) || !product->domain.empty()) continue;
      const Fact& weight = r.fact(product->inputs[1]);
      const Node* turned = r.producer(product->inputs[1], "Transpose");
      const bool trained = r.is_parameter(product->inputs[1]) ||
                           (turned != nullptr && r.is_parameter(turned->inputs[0]));
      if (!trained || weight.dims.size() != 2 || r.fact(product->inputs[0]).dims.size() < 2)
        continue;
      if (r.fact(bias).dims != std::vector<std::int64_t>{weight.dims[1]}) continue;
      Node fused;
      fused.op = "Linear";
      fused.domain = kOwnDomain;
      fused.name = product->name;
      fused.inputs = {product->inputs[0], product->inputs[1], bias};
      fused.outputs = {add.outputs[0]};
      r.replace(std::move(fused), "biases of linear layers");
      break;
    }
  }
}

}  // namespace meshwright::onnx
