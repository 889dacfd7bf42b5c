#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "import/onnx/fuse.h"

namespace meshwright::onnx {
namespace {

// Operands of a node, those of the graphs in its attributes included.
void operands(const Node& node, std::vector<std::string>& names) {
  names.insert(names.end(), node.inputs.begin(), node.inputs.end());
  for (const Attribute& a : node.attributes) {
    if (!a.graph) continue;
    for (const Node& inner : a.graph->nodes) operands(inner, names);
    for (const ValueInfo& output : a.graph->outputs) names.push_back(output.name);
  }
}

}  // namespace

Rewriter::Rewriter(ModelFile& model, Inferred& inferred)
    : model_(model), inferred_(inferred), removed_(model.graph.nodes.size()) {
  for (std::size_t i = 0; i < count(); ++i) link(i, 1);
  for (const ValueInfo& output : model.graph.outputs) {
    uses_[output.name] += 2;
    outputs_.insert(output.name);
  }
  for (const Tensor& t : model.graph.initializers) {
    const Fact& f = fact(t.name);
    if (!f.constant && is_floating_type(f.type)) parameters_.insert(t.name);
  }
}

void Rewriter::link(std::size_t i, int change) {
  std::vector<std::string> names;
  operands(node(i), names);
  for (const std::string& name : names) {
    uses_[name] += change;
    std::vector<std::size_t>& users = users_[name];
    if (change > 0) {
      users.push_back(i);
    } else if (const auto it = std::ranges::find(users, i); it != users.end()) {
      users.erase(it);
    }
  }
  for (const std::string& name : node(i).outputs) {
    if (change > 0) producer_[name] = i;
  }
}

const Fact& Rewriter::fact(const std::string& name) const {
  const auto it = inferred_.facts.find(name);
  // Operands that are left out have no fact.
  static const Fact kNone{kUnknownType, {}, nullptr, false, false};
  return it == inferred_.facts.end() ? kNone : it->second;
}

const Node* Rewriter::producer(const std::string& name) const {
  const auto it = producer_.find(name);
  return name.empty() || it == producer_.end() || removed_[it->second] ? nullptr
                                                                       : &node(it->second);
}

const Node* Rewriter::producer(const std::string& name, std::string_view op) const {
  const Node* n = producer(name);
  const bool fits = n != nullptr && n->op == op && (n->domain.empty() || n->domain == kOwnDomain) &&
                    !n->outputs.empty() && n->outputs[0] == name;
  return fits ? n : nullptr;
}

const Node* Rewriter::only_producer(const std::string& name, std::string_view op) const {
  const auto it = uses_.find(name);
  return it != uses_.end() && it->second == 1 ? producer(name, op) : nullptr;
}

const Node* Rewriter::only_user(const std::string& name) const {
  const auto it = uses_.find(name);
  const auto users = users_.find(name);
  if (it == uses_.end() || it->second != 1 || users == users_.end() || users->second.size() != 1)
    return nullptr;
  return &node(users->second[0]);
}

bool Rewriter::is_parameter(const std::string& name) const { return parameters_.contains(name); }

bool Rewriter::is_output(const std::string& name) const { return outputs_.contains(name); }

int Rewriter::uses(const std::string& name) const {
  const auto it = uses_.find(name);
  return it == uses_.end() ? 0 : it->second;
}

std::vector<const Node*> Rewriter::users(const std::string& name) const {
  std::vector<const Node*> result;
  const auto it = users_.find(name);
  if (it == users_.end()) return result;
  for (const std::size_t i : it->second) result.push_back(&node(i));
  return result;
}

std::string Rewriter::add_value(const std::string& name, Fact fact, const std::string& like) {
  std::string fresh = name;
  while (inferred_.facts.contains(fresh)) fresh += "_";
  inferred_.facts[fresh] = std::move(fact);
  if (!like.empty()) added_.emplace_back(fresh, like);
  return fresh;
}

std::string Rewriter::add_parameter(const std::string& name, Fact fact) {
  Tensor tensor;
  tensor.type = fact.type;
  tensor.dims = fact.dims;
  tensor.name = add_value(name, std::move(fact), "");
  parameters_.insert(tensor.name);
  model_.graph.initializers.push_back(tensor);
  return tensor.name;
}

void Rewriter::remove(std::size_t i, const std::string& what) {
  std::vector<std::string> dropped;
  operands(node(i), dropped);
  removed_[i] = true;
  link(i, -1);
  ++counts_[what];
  sweep(std::move(dropped));
}

std::optional<double> Rewriter::number(const std::string& name) const {
  const auto it = inferred_.facts.find(name);
  if (it == inferred_.facts.end() || !it->second.constant || !it->second.known ||
      it->second.known->size() != 1) {
    return std::nullopt;
  }
  const Known& known = *it->second.known;
  return known.floating ? known.floats[0] : static_cast<double>(known.ints[0]);
}

bool Rewriter::is_number(const std::string& name, double value) const {
  const auto n = number(name);
  return n && std::abs(*n - value) <= 1e-3 * std::abs(value);
}

std::string Rewriter::uncast(const std::string& name) const {
  const Node* cast = producer(name, "Cast");
  if (cast == nullptr || !is_floating_type(fact(name).type) ||
      !is_floating_type(fact(cast->inputs[0]).type)) {
    return name;
  }
  return cast->inputs[0];
}

void Rewriter::drop_identities() {
  std::unordered_set<std::string> inside;
  for (const Node& n : model_.graph.nodes) {
    std::vector<std::string> names;
    operands(n, names);
    for (std::size_t k = n.inputs.size(); k < names.size(); ++k) inside.insert(names[k]);
  }
  for (const std::size_t i : inferred_.order) {
    const Node& n = node(i);
    const bool plain =
        n.op == "Identity" && n.domain.empty() && n.inputs.size() == 1 && n.outputs.size() == 1;
    if (!plain || is_output(n.outputs[0]) || inside.contains(n.outputs[0])) continue;
    const std::string from = n.outputs[0];
    const std::string to = n.inputs[0];
    for (const std::size_t user : std::vector<std::size_t>(users_[from])) {
      link(user, -1);
      std::ranges::replace(model_.graph.nodes[user].inputs, from, to);
      link(user, 1);
    }
    remove(i, "identities");
  }
}

void Rewriter::replace(Node fused, const std::string& what) {
  const std::size_t at = producer_.at(fused.outputs[0]);
  std::vector<std::string> dropped;
  operands(node(at), dropped);
  if (fused.name.empty()) fused.name = node(at).name;
  link(at, -1);
  model_.graph.nodes[at] = std::move(fused);
  link(at, 1);
  ++counts_[what];
  sweep(std::move(dropped));
}

// Removes what nothing reads any more.
void Rewriter::sweep(std::vector<std::string> candidates) {
  while (!candidates.empty()) {
    const std::string name = std::move(candidates.back());
    candidates.pop_back();
    const auto it = producer_.find(name);
    if (it == producer_.end() || removed_[it->second]) continue;
    const std::size_t i = it->second;
    const bool needed = std::ranges::any_of(node(i).outputs, [&](const std::string& out) {
      const auto use = uses_.find(out);
      return use != uses_.end() && use->second > 0;
    });
    if (needed) continue;
    removed_[i] = true;
    ++swept_;
    operands(node(i), candidates);
    link(i, -1);
  }
}

void Rewriter::insert_before(const std::string& before, Node fresh) {
  const std::size_t i = model_.graph.nodes.size();
  inserted_[before].push_back(i);
  model_.graph.nodes.push_back(std::move(fresh));
  removed_.push_back(false);
  link(i, 1);
}

void Rewriter::finish() {
  std::vector<std::size_t> order;
  for (const std::size_t i : inferred_.order) {
    for (const std::string& name : node(i).outputs) {
      const auto it = inserted_.find(name);
      if (it == inserted_.end()) continue;
      for (const std::size_t fresh : it->second) {
        if (!removed_[fresh]) order.push_back(fresh);
      }
    }
    if (!removed_[i]) order.push_back(i);
  }
  inferred_.order = std::move(order);
}

Product product_of(const Rewriter& r, const std::string& raw, bool top) {
  const std::string name = top ? raw : r.uncast(raw);
  Product result;
  const auto fetch = [&](std::string_view op) {
    return top ? r.producer(name, op) : r.only_producer(name, op);
  };
  const auto absorb = [&](const Product& p) {
    result.number *= p.number;
    result.factors.insert(result.factors.end(), p.factors.begin(), p.factors.end());
  };
  if (const auto n = r.number(name)) {
    result.number = *n;
  } else if (const Node* mul = fetch("Mul"); mul != nullptr && mul->inputs.size() == 2) {
    // A square of one value: both operands are the same.
    for (const std::string& input : mul->inputs) {
      const Product part = product_of(r, input, false);
      absorb(part);
      if (result.factors.size() > 8) return {1, {name}};
    }
  } else if (const Node* div = fetch("Div");
             div != nullptr && div->inputs.size() == 2 && r.number(div->inputs[1])) {
    absorb(product_of(r, div->inputs[0], false));
    result.number /= *r.number(div->inputs[1]);
  } else if (const Node* pow = fetch("Pow");
             pow != nullptr && pow->inputs.size() == 2 &&
             (r.is_number(pow->inputs[1], 2) || r.is_number(pow->inputs[1], 3))) {
    const int times = r.is_number(pow->inputs[1], 2) ? 2 : 3;
    for (int i = 0; i < times; ++i) result.factors.push_back(r.uncast(pow->inputs[0]));
  } else {
    result.factors.push_back(name);
  }
  return result;
}

}  // namespace meshwright::onnx
