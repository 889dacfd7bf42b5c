#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/spelling.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

// Names that the graphs inside a node's attributes read from around them (and a few that they
// define themselves, which no graph around them may define).
void captured(const Node& node, std::vector<std::string_view>& names) {
  for (const Attribute& a : node.attributes) {
    if (!a.graph) continue;
    std::unordered_set<std::string_view> own;
    for (const Tensor& t : a.graph->initializers) own.insert(t.name);
    for (const ValueInfo& v : a.graph->inputs) own.insert(v.name);
    for (const Node& inner : a.graph->nodes) own.insert(inner.outputs.begin(), inner.outputs.end());
    std::vector<std::string_view> used;
    for (const Node& inner : a.graph->nodes) {
      used.insert(used.end(), inner.inputs.begin(), inner.inputs.end());
      captured(inner, used);
    }
    for (const ValueInfo& v : a.graph->outputs) used.push_back(v.name);
    for (const std::string_view name : used) {
      if (!own.contains(name)) names.push_back(name);
    }
  }
}

}  // namespace

std::string node_label(const Node& node) {
  const std::string& name =
      node.name.empty() && !node.outputs.empty() ? node.outputs[0] : node.name;
  const std::string op = node.domain.empty() ? node.op : node.domain + "." + node.op;
  std::string quoted = in_quotes(op);
  if (quoted.size() == op.size() + 2) quoted = op;
  return fmt::format("node {} ({})", in_quotes(name), quoted);
}

std::vector<std::size_t> topological_order(const Subgraph& graph,
                                           const std::function<bool(const std::string&)>& outer) {
  std::unordered_map<std::string_view, std::size_t> producer;
  std::unordered_set<std::string_view> given;
  for (const Tensor& t : graph.initializers) given.insert(t.name);
  for (const ValueInfo& v : graph.inputs) given.insert(v.name);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& name : graph.nodes[i].outputs) {
      if (name.empty()) continue;
      if (given.contains(name) || !producer.emplace(name, i).second) {
        throw Error(fmt::format("value {} is computed twice", in_quotes(name)),
                    node_label(graph.nodes[i]));
      }
    }
  }
  std::vector<std::vector<std::size_t>> users(graph.nodes.size());
  std::vector<std::size_t> waits(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    std::vector<std::string_view> names(node.inputs.begin(), node.inputs.end());
    const std::size_t direct = names.size();
    captured(node, names);
    for (std::size_t k = 0; k < names.size(); ++k) {
      const std::string_view name = names[k];
      if (name.empty() || given.contains(name)) continue;
      const auto it = producer.find(name);
      if (it != producer.end()) {
        users[it->second].push_back(i);
        ++waits[i];
      } else if (k < direct && !outer(std::string(name))) {
        throw Error(fmt::format("operand {} is computed by no node", in_quotes(name)),
                    node_label(node));
      }
    }
  }
  // As close to the file's order as the operands allow: a node goes when its last operand is there.
  std::vector<std::size_t> order;
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (waits[i] == 0) ready.push_back(i);
    while (!ready.empty()) {
      const std::size_t next = ready.back();
      ready.pop_back();
      order.push_back(next);
      for (const std::size_t user : users[next]) {
        if (--waits[user] == 0 && user <= i) ready.push_back(user);
      }
    }
  }
  if (order.size() < graph.nodes.size()) {
    std::vector<bool> done(graph.nodes.size());
    for (const std::size_t i : order) done[i] = true;
    for (std::size_t i = 0; i < done.size(); ++i) {
      if (!done[i]) throw Error("the nodes form a cycle", node_label(graph.nodes[i]));
    }
  }
  return order;
}

}  // namespace meshwright::onnx
