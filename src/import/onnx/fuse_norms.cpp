// Layer norm and RMS norm as exporters of opsets below 17 (23) take them apart.

#include <fmt/format.h>

#include <algorithm>

#include "import/onnx/fuse.h"

namespace meshwright::onnx {
namespace {

// The operand of a mean over the last dimension that keeps it.
std::optional<std::string> mean_of(const Rewriter& r, const std::string& name) {
  const Node* mean = r.producer(name, "ReduceMean");
  if (mean == nullptr) return std::nullopt;
  const std::vector<std::int64_t>& in = r.fact(mean->inputs[0]).dims;
  const std::vector<std::int64_t>& out = r.fact(name).dims;
  if (in.empty() || in.size() != out.size() || out.back() != 1) return std::nullopt;
  if (!std::equal(in.begin(), in.end() - 1, out.begin())) return std::nullopt;
  return mean->inputs[0];
}

// What is squared: Pow(x, 2) or Mul(x, x).
std::optional<std::string> square_of(const Rewriter& r, const std::string& name) {
  const Product p = product_of(r, name);
  if (p.number != 1 || p.factors.size() != 2 || r.uncast(p.factors[0]) != r.uncast(p.factors[1]))
    return std::nullopt;
  return r.uncast(p.factors[0]);
}

struct RootMeanSquare {
  std::string of;
  double epsilon;
};

// Sqrt(ReduceMean(of^2) + epsilon).
std::optional<RootMeanSquare> root_mean_square(const Rewriter& r, const std::string& raw) {
  const Node* root = r.producer(r.uncast(raw), "Sqrt");
  if (root == nullptr) return std::nullopt;
  const Node* sum = r.producer(root->inputs[0], "Add");
  if (sum == nullptr) return std::nullopt;
  for (const std::size_t i : {0, 1}) {
    const auto epsilon = r.number(sum->inputs[i]);
    if (!epsilon || *epsilon < 0 || *epsilon > 0.1) continue;
    const auto squares = mean_of(r, sum->inputs[1 - i]);
    const auto of = squares ? square_of(r, *squares) : std::nullopt;
    if (of) return RootMeanSquare{*of, *epsilon};
  }
  return std::nullopt;
}

// Numerator and root of Div(a, Sqrt), or of Mul(a, Reciprocal(Sqrt)), or of Mul(a, Div(1, Sqrt)).
std::optional<std::pair<std::string, RootMeanSquare>> quotient(const Rewriter& r,
                                                               const std::string& name) {
  if (const Node* div = r.producer(name, "Div")) {
    if (const auto root = root_mean_square(r, div->inputs[1]))
      return std::pair(div->inputs[0], *root);
  }
  const Node* mul = r.producer(name, "Mul");
  for (std::size_t i = 0; mul != nullptr && i < 2; ++i) {
    std::string inverse = r.uncast(mul->inputs[i]);
    if (const Node* one = r.producer(inverse, "Reciprocal")) {
      inverse = one->inputs[0];
    } else if (const Node* d = r.producer(inverse, "Div");
               d != nullptr && r.is_number(d->inputs[0], 1)) {
      inverse = d->inputs[1];
    } else {
      continue;
    }
    if (const auto root = root_mean_square(r, inverse)) return std::pair(mul->inputs[1 - i], *root);
  }
  return std::nullopt;
}

// The vector over the last dimension that `user` combines the value with, when that is all it does.
std::string vector_of(const Rewriter& r, const Node* user, std::string_view op,
                      const std::string& value, std::int64_t size) {
  if (user == nullptr || user->op != op || !user->domain.empty() || user->inputs.size() != 2)
    return {};
  for (const std::size_t i : {0, 1}) {
    if (r.uncast(user->inputs[i]) != value && user->inputs[i] != value) continue;
    const std::string other = user->inputs[1 - i];
    const Fact& f = r.fact(other);
    if (f.dims.size() == 1 && f.dims[0] == size && r.is_parameter(r.uncast(other)))
      return r.uncast(other);
  }
  return {};
}

// A cast of the value that nothing else reads is part of the norm.
const Node* user_past_cast(const Rewriter& r, std::string& value) {
  const Node* user = r.only_user(value);
  if (user != nullptr && user->op == "Cast" && is_floating_type(r.fact(user->outputs[0]).type)) {
    value = user->outputs[0];
    user = r.only_user(value);
  }
  return user;
}

}  // namespace

void fuse_norms(Rewriter& r) {
  for (std::size_t i = 0; i < r.count(); ++i) {
    if (r.removed(i) || r.node(i).outputs.empty() ||
        (r.node(i).op != "Div" && r.node(i).op != "Mul"))
      continue;
    std::string result = r.node(i).outputs[0];
    const auto q = quotient(r, result);
    if (!q) continue;
    const auto& [numerator, root] = *q;
    // Layer norm divides what it squares, x minus its mean; RMS norm x itself.
    std::string x;
    const Node* sub = r.producer(r.uncast(root.of), "Sub");
    const Node* above = r.producer(r.uncast(numerator), "Sub");
    bool centred = false;
    if (sub != nullptr && above != nullptr && sub->inputs == above->inputs) {
      const auto mean = mean_of(r, sub->inputs[1]);
      centred = mean && r.uncast(*mean) == r.uncast(sub->inputs[0]);
    }
    if (centred) {
      x = sub->inputs[0];
    } else if (r.uncast(numerator) == r.uncast(root.of)) {
      x = r.uncast(numerator);
    } else {
      continue;
    }
    if (r.fact(result).dims != r.fact(x).dims) continue;
    const std::int64_t size = r.fact(x).dims.back();
    std::vector<std::string> inputs = {x};
    const Node* user = user_past_cast(r, result);
    if (const std::string weight = vector_of(r, user, "Mul", result, size); !weight.empty()) {
      inputs.push_back(weight);
      result = user->outputs[0];
      if (centred) {
        user = user_past_cast(r, result);
        const std::string bias = vector_of(r, user, "Add", result, size);
        if (!bias.empty()) {
          inputs.push_back(bias);
          result = user->outputs[0];
        }
      }
    }
    Node fused;
    fused.op = centred ? "LayerNormalization" : "RMSNormalization";
    fused.domain = kOwnDomain;
    fused.inputs = std::move(inputs);
    fused.outputs = {result};
    Attribute epsilon;
    epsilon.name = "epsilon";
    epsilon.kind = Attribute::Kind::kFloat;
    epsilon.f = root.epsilon;
    fused.attributes = {epsilon};
    r.replace(std::move(fused), centred ? "layer norms" : "RMS norms");
  }
}

}  // namespace meshwright::onnx
