// Calls of functions that a model defines itself are replaced by the functions' nodes.

#include <fmt/format.h>

#include <unordered_map>

#include "base/spelling.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

constexpr std::size_t kMaxNodes = 1'000'000;
constexpr int kMaxDepth = 16;

using NameMap = std::unordered_map<std::string, std::string>;

class Inliner {
 public:
  explicit Inliner(const std::vector<Function>& functions) {
    for (const Function& f : functions) functions_.emplace(f.domain + ":" + f.name, &f);
  }

  std::vector<Node> expand(std::vector<Node> nodes, int depth) {
    std::vector<Node> result;
    for (Node& node : nodes) {
      for (Attribute& a : node.attributes) {
        if (!a.graph) continue;
        auto graph = std::make_shared<Subgraph>(*a.graph);
        graph->nodes = expand(std::move(graph->nodes), depth + 1);
        a.graph = std::move(graph);
      }
      const auto it = functions_.find(node.domain + ":" + node.op);
      if (++made_ > kMaxNodes) throw Error(fmt::format("more than {} nodes", kMaxNodes));
      if (it == functions_.end()) {
        result.push_back(std::move(node));
        continue;
      }
      if (depth > kMaxDepth) {
        throw Error(fmt::format("functions nest deeper than {}", kMaxDepth), node_label(node));
      }
      std::vector<Node> body = expand(call(node, *it->second), depth + 1);
      for (Node& inner : body) result.push_back(std::move(inner));
    }
    return result;
  }

 private:
  // The function's nodes with the call's names and attributes.
  std::vector<Node> call(const Node& node, const Function& f) {
    const std::string prefix =
        node.name.empty() ? fmt::format("{}_{}", node.op, ++calls_) : node.name;
    if (node.inputs.size() > f.inputs.size() || node.outputs.size() > f.outputs.size()) {
      throw Error(fmt::format("the function takes {} operands and gives {} results",
                              f.inputs.size(), f.outputs.size()),
                  node_label(node));
    }
    NameMap names;
    for (std::size_t i = 0; i < f.inputs.size(); ++i) {
      names[f.inputs[i]] = i < node.inputs.size() ? node.inputs[i] : "";
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i].empty()) names[f.outputs[i]] = node.outputs[i];
    }
    std::vector<Node> body = f.nodes;
    for (Node& inner : body) {
      inner.name = prefix + "/" + (inner.name.empty() ? inner.op : inner.name);
      substitute(inner, node, f);
      rename(inner, names, prefix);
    }
    return body;
  }

  static const Attribute* given(const std::string& name, const Node& node, const Function& f) {
    if (const Attribute* a = node.attribute(name)) return a;
    for (const Attribute& a : f.defaults) {
      if (a.name == name) return &a;
    }
    return nullptr;
  }

  static void substitute(Node& inner, const Node& node, const Function& f) {
    std::vector<Attribute> attributes;
    for (Attribute& a : inner.attributes) {
      if (a.reference.empty()) {
        attributes.push_back(std::move(a));
      } else if (const Attribute* value = given(a.reference, node, f)) {
        attributes.push_back(*value);
        attributes.back().name = a.name;
      }
    }
    inner.attributes = std::move(attributes);
  }

  void rename(Node& node, NameMap& names, const std::string& prefix) {
    const auto renamed = [&](std::string& name) {
      if (name.empty()) return;
      name = names.try_emplace(name, prefix + "/" + name).first->second;
    };
    for (std::string& name : node.inputs) renamed(name);
    for (std::string& name : node.outputs) renamed(name);
    for (Attribute& a : node.attributes) {
      if (!a.graph) continue;
      auto graph = std::make_shared<Subgraph>(*a.graph);
      for (Tensor& t : graph->initializers) renamed(t.name);
      for (auto* infos : {&graph->inputs, &graph->outputs, &graph->values}) {
        for (ValueInfo& info : *infos) renamed(info.name);
      }
      for (Node& inner : graph->nodes) rename(inner, names, prefix);
      a.graph = std::move(graph);
    }
  }

  std::unordered_map<std::string, const Function*> functions_;
  std::size_t made_ = 0;  // Nodes and calls, so that empty functions end too.
  int calls_ = 0;
};

}  // namespace

void inline_functions(ModelFile& model) {
  if (model.functions.empty()) return;
  model.graph.nodes = Inliner(model.functions).expand(std::move(model.graph.nodes), 0);
}

}  // namespace meshwright::onnx
