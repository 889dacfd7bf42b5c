// What dimensions range over, as far as the operators around them tell. Names only guide templates
// ("heads", "ffn" and "vocab" may be split over tensor-parallel devices); a graph is right without
// them.

#include <algorithm>
#include <map>
#include <set>

#include "import/onnx/fuse.h"

namespace meshwright::onnx {
namespace {

using Names = std::unordered_map<std::string, std::vector<Dim>>;

void set_name(const Rewriter& r, Names& names, const std::string& value, std::size_t d, Dim dim) {
  std::vector<Dim>& dims = names[value];
  dims.resize(r.fact(value).dims.size());
  if (d < dims.size() && dims[d].name.empty()) dims[d] = std::move(dim);
}

bool is_linear(const Rewriter& r, const Node& node) {
  if (node.op != "MatMul" && node.op != "Linear" && node.op != "Gemm") return false;
  if (node.inputs.size() < 2 || r.fact(node.inputs[1]).dims.size() != 2) return false;
  const Node* turned = r.producer(node.inputs[1], "Transpose");
  return r.is_parameter(node.inputs[1]) || (turned != nullptr && r.is_parameter(turned->inputs[0]));
}

// The reshape that made heads of a flat dimension, up the first operands.
const Node* head_split(const Rewriter& r, std::string name) {
  for (int steps = 0; steps < 64; ++steps) {
    const Node* node = r.producer(name);
    if (node == nullptr || node->inputs.empty() || node->inputs[0].empty()) return nullptr;
    const std::size_t in = r.fact(node->inputs[0]).dims.size();
    const std::size_t out = r.fact(name).dims.size();
    if (node->op == "Reshape" && in < 4 && out == 4) return node;
    if (in != 4) return nullptr;
    name = node->inputs[0];
  }
  return nullptr;
}

// The linear layer that computes a value, up views and biases.
const Node* layer_above(const Rewriter& r, std::string name) {
  for (int steps = 0; steps < 8; ++steps) {
    const Node* node = r.producer(name);
    if (node == nullptr) return nullptr;
    if (is_linear(r, *node)) return node;
    if (node->op != "Add" && node->op != "Reshape" && node->op != "Identity" && node->op != "Cast")
      return nullptr;
    const bool second = r.is_parameter(node->inputs[0]);
    name = node->inputs[second ? 1 : 0];
  }
  return nullptr;
}

void name_heads(const Rewriter& r, Names& names) {
  for (std::size_t i = 0; i < r.count(); ++i) {
    const Node& node = r.node(i);
    if (r.removed(i) || node.op != "FusedAttention") continue;
    std::int64_t queries = 0;
    for (std::size_t side = 0; side < 3; ++side) {
      const Node* split = head_split(r, node.inputs[side]);
      if (split == nullptr) continue;
      const std::vector<std::int64_t>& dims = r.fact(split->outputs[0]).dims;
      const std::int64_t heads = dims[2];
      if (side == 0) queries = heads;
      const std::string label = heads == queries ? "heads" : "kv_heads";
      set_name(r, names, split->outputs[0], 2, {label, heads, 1});
      set_name(r, names, split->outputs[0], 3, {"head_dim", dims[3], 1});
      const Node* layer = layer_above(r, split->inputs[0]);
      if (layer == nullptr) continue;
      const std::size_t last = r.fact(layer->outputs[0]).dims.size() - 1;
      if (r.fact(layer->outputs[0]).dims[last] == heads * dims[3]) {
        set_name(r, names, layer->outputs[0], last, {label, heads * dims[3], dims[3]});
      }
    }
  }
}

// Whether everything that reads the value is pointwise or a linear layer that contracts it.
bool feeds_layer(const Rewriter& r, const std::string& value) {
  std::vector<std::string> open = {value};
  std::set<std::string> seen;
  const std::int64_t width = r.fact(value).dims.back();
  bool reached = false;
  while (!open.empty()) {
    const std::string name = std::move(open.back());
    open.pop_back();
    if (!seen.insert(name).second) continue;
    if (seen.size() > 32) return false;
    const std::vector<const Node*> users = r.users(name);
    if (users.empty() || r.is_output(name)) return false;
    for (const Node* user : users) {
      if (is_linear(r, *user) && user->inputs[0] == name) {
        reached = true;
        continue;
      }
      const std::vector<std::int64_t>& dims = r.fact(user->outputs[0]).dims;
      static const std::set<std::string_view> kPassing = {
          "Activation", "Add",       "Cast",     "Clip",      "Div",  "Dropout", "Elu",
          "Gelu",       "HardSwish", "Identity", "LeakyRelu", "Mish", "Mul",     "PRelu",
          "Relu",       "Sigmoid",   "Silu",     "Softplus",  "Sub",  "Swish",   "Tanh"};
      if (!kPassing.contains(user->op) || dims.empty() || dims.back() != width) return false;
      open.push_back(user->outputs[0]);
    }
  }
  return reached;
}

}  // namespace

Names name_dims(const Rewriter& r) {
  Names names;
  name_heads(r, names);
  // Tables: the largest that ids look up is the vocabulary.
  std::map<std::int64_t, int> widths;
  std::string vocabulary;
  std::set<std::string> tables;
  for (std::size_t i = 0; i < r.count(); ++i) {
    const Node& node = r.node(i);
    if (r.removed(i)) continue;
    if (node.op == "LayerNormalization" || node.op == "RMSNormalization") {
      if (r.fact(node.inputs[0]).dims.size() == 3) ++widths[r.fact(node.inputs[0]).dims.back()];
    }
    const bool table = node.op == "Gather" && node.inputs.size() > 1 &&
                       r.is_parameter(node.inputs[0]) && r.fact(node.inputs[0]).dims.size() == 2;
    if (!table) continue;
    tables.insert(node.inputs[0]);
    const bool by_data = !r.fact(node.inputs[1]).constant;
    const auto rows = [&](const std::string& t) { return r.fact(t).dims[0]; };
    if (by_data && (vocabulary.empty() || rows(node.inputs[0]) > rows(vocabulary)))
      vocabulary = node.inputs[0];
  }
  std::int64_t hidden = vocabulary.empty() ? 0 : r.fact(vocabulary).dims[1];
  const auto widest =
      std::ranges::max_element(widths, {}, [](const auto& entry) { return entry.second; });
  if (widest != widths.end()) hidden = widest->first;
  const std::int64_t vocab = vocabulary.empty() ? 0 : r.fact(vocabulary).dims[0];
  for (const std::string& table : tables) {
    const std::vector<std::int64_t>& dims = r.fact(table).dims;
    set_name(r, names, table, 0, {table == vocabulary ? "vocab" : "positions", dims[0], 1});
    set_name(r, names, table, 1, {dims[1] == hidden ? "hidden" : "features", dims[1], 1});
  }
  for (std::size_t i = 0; i < r.count(); ++i) {
    const Node& node = r.node(i);
    if (r.removed(i) || !is_linear(r, node)) continue;
    const std::vector<std::int64_t>& in = r.fact(node.inputs[0]).dims;
    const std::vector<std::int64_t>& out = r.fact(node.outputs[0]).dims;
    if (out.empty() || in.empty()) continue;
    const std::int64_t n = out.back();
    if (n == vocab && vocab > hidden) {
      set_name(r, names, node.outputs[0], out.size() - 1, {"vocab", n, 1});
    } else if (hidden != 0 && n > hidden && in.back() == hidden &&
               feeds_layer(r, node.outputs[0])) {
      set_name(r, names, node.outputs[0], out.size() - 1, {"ffn", n, 1});
    } else if (n == hidden) {
      set_name(r, names, node.outputs[0], out.size() - 1, {"hidden", n, 1});
    }
  }
  return names;
}

}  // namespace meshwright::onnx
