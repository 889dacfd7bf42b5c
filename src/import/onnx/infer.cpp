// Shape inference over a whole model: inputs get their sizes from the binding, then every node in
// order gets the types of its results from its operator's row, and small integer results their
// values.

#include "import/onnx/infer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <unordered_set>

#include "base/spelling.h"

namespace meshwright::onnx {
namespace {

// Elements of constants that one model may have computed; beyond it, values are unknown.
constexpr double kMaxEvaluated = 2e7;

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Values of a graph and of those around it.
struct Scope {
  Facts facts;
  const Scope* parent = nullptr;
  const Fact* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      const auto it = scope->facts.find(name);
      if (it != scope->facts.end()) return &it->second;
    }
    return nullptr;
  }
};

class Engine {
 public:
  Engine(const ModelFile& model, const Binding& binding) : model_(model), binding_(binding) {
    for (const auto& [domain, version] : model.opsets) {
      if (version < 1 || version > 1000) {
        throw Error(fmt::format("opset {} of domain {}", version, in_quotes(domain)));
      }
    }
  }

  Inferred run() {
    Scope scope;
    const std::int64_t whole = static_batch_ = static_batch(model_.graph);
    for (const ValueInfo* input : fed_inputs(model_.graph)) {
      Fact fact = stated_fact(*input, true);
      if (binding_.replace_static_batch && whole > 0 && fact.dims.size() >= 2 &&
          fact.dims[0] == whole) {
        fact.dims[0] = binding_.batch;
      }
      check(fact);
      if (binding_.masks_are_set && has(input->name, "mask") && !is_floating_type(fact.type) &&
          fact.elements() <= static_cast<double>(kMaxKnown)) {
        Known ones;
        ones.ints.assign(static_cast<std::size_t>(fact.elements()), 1);
        fact.known = std::make_shared<Known>(std::move(ones));
      }
      scope.facts[input->name] = std::move(fact);
    }
    result_.order = graph(model_.graph, scope);
    for (const ValueInfo& output : model_.graph.outputs) {
      if (!scope.facts.contains(output.name)) {
        throw Error(fmt::format("output {} is computed by no node", in_quotes(output.name)));
      }
    }
    for (const auto* infos : {&model_.graph.values, &model_.graph.outputs}) {
      for (const ValueInfo& info : *infos) {
        if (std::optional<Fact> fact = known_fact(info))
          result_.stated[info.name] = std::move(fact->dims);
      }
    }
    result_.facts = std::move(scope.facts);
    return std::move(result_);
  }

 private:
  // Legal for a tensor anywhere in a model.
  static void check(const Fact& fact) {
    if (fact.dims.size() > 64) throw Error(fmt::format("a tensor of rank {}", fact.dims.size()));
    for (const std::int64_t dim : fact.dims) {
      if (dim < 0 || dim > kMaxSize)
        throw Error(fmt::format("a tensor of shape {}", shape_text(fact.dims)));
    }
    product(fact.dims);
  }

  std::int64_t size_of(const ValueInfo& info, std::size_t d) {
    const StatedDim& dim = (*info.dims)[d];
    std::int64_t size = 0;
    switch (input_role(info, d)) {
      case InputRole::kStatic:
        size = *dim.size;
        if (size < 0) throw Error(fmt::format("dimension {} has size {}", d, size));
        return size;
      case InputRole::kBatch:
        size = binding_.batch;
        break;
      case InputRole::kSeq:
        size = binding_.seq;
        break;
      case InputRole::kOther:
        size = binding_.other;
        break;
    }
    if (!dim.name.empty()) return symbols_.try_emplace(dim.name, size).first->second;
    return size;
  }

  Fact stated_fact(const ValueInfo& info, bool input) {
    Fact fact;
    fact.type = info.type;
    fact.tensor = info.tensor;
    if (!info.tensor) return fact;
    const std::string place = fmt::format("{} {}", input ? "input" : "value", in_quotes(info.name));
    if (!info.dims) {
      throw Error("its shape is not stated", place,
                  "export the model with the shapes of its inputs");
    }
    for (std::size_t d = 0; d < info.dims->size(); ++d) {
      try {
        fact.dims.push_back(size_of(info, d));
      } catch (const Error& e) {
        throw e.within(place);
      }
    }
    return fact;
  }

  // The type of a value whose stated dimensions all have sizes, or names that inputs have given.
  std::optional<Fact> known_fact(const ValueInfo& info) const {
    if (!info.dims || info.type == kUnknownType) return std::nullopt;
    Fact fact;
    fact.type = info.type;
    for (const StatedDim& dim : *info.dims) {
      const auto it = symbols_.find(dim.name);
      if (dim.size && *dim.size >= 0) {
        fact.dims.push_back(*dim.size);
      } else if (!dim.name.empty() && it != symbols_.end()) {
        fact.dims.push_back(it->second);
      } else {
        return std::nullopt;
      }
    }
    return fact;
  }

  std::vector<std::size_t> graph(const Subgraph& graph, Scope& scope) {
    for (const Tensor& t : graph.initializers) {
      Fact fact{t.type, t.dims, t.known, false, true};
      fact.constant = !is_floating_type(t.type) || fact.elements() <= 1;
      scope.facts[t.name] = std::move(fact);
    }
    std::unordered_map<std::string_view, const ValueInfo*> stated;
    for (const ValueInfo& v : graph.values) stated[v.name] = &v;
    for (const ValueInfo& v : graph.outputs) stated[v.name] = &v;
    const Scope* parent = scope.parent;
    const auto outer = [&](const std::string& name) {
      return parent != nullptr && parent->find(name) != nullptr;
    };
    std::vector<std::size_t> order = topological_order(graph, outer);
    for (const std::size_t i : order) {
      const Node& node = graph.nodes[i];
      try {
        std::vector<Fact> results = infer_node(node, scope, stated);
        for (std::size_t k = 0; k < node.outputs.size(); ++k) {
          if (node.outputs[k].empty()) continue;
          check(results[k]);
          scope.facts[node.outputs[k]] = std::move(results[k]);
        }
      } catch (const DependsOnData& e) {
        const Error placed = e.within(node_label(node));
        throw DependsOnData(placed.message(), placed.where(), placed.hint());
      } catch (const Error& e) {
        throw e.within(node_label(node));
      }
    }
    return order;
  }

  std::vector<Fact> infer_node(
      const Node& node, const Scope& scope,
      const std::unordered_map<std::string_view, const ValueInfo*>& stated) {
    std::vector<const Fact*> inputs;
    bool constant = true;
    for (const std::string& name : node.inputs) {
      const Fact* fact = name.empty() ? nullptr : scope.find(name);
      if (!name.empty() && fact == nullptr) {
        throw Error(fmt::format("operand {} is computed by no node", in_quotes(name)));
      }
      constant = constant && (fact == nullptr || fact->constant);
      inputs.push_back(fact);
    }
    while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
    const auto it = model_.opsets.find(node.domain);
    NodeView view(node, it == model_.opsets.end() ? 24 : it->second, std::move(inputs));
    if (binding_.replace_static_batch) {
      view.exported_batch = static_batch_;
      view.batch = binding_.batch;
    }
    std::vector<Fact> results;
    const auto use_stated = [&] {
      std::vector<Fact> facts;
      for (const std::string& name : node.outputs) {
        const auto found = stated.find(name);
        if (name.empty()) {
          facts.emplace_back();
        } else if (found != stated.end() && !found->second->tensor) {
          facts.emplace_back().tensor = false;
        } else if (auto fact = found == stated.end() ? std::nullopt : known_fact(*found->second)) {
          facts.push_back(std::move(*fact));
        } else {
          return std::vector<Fact>();
        }
        facts.back().stated = true;
      }
      return facts;
    };
    try {
      results = infer_results(view, scope, use_stated);
    } catch (const DependsOnData&) {
      results = use_stated();
      if (results.size() != node.outputs.size()) throw;
    }
    if (results.size() < node.outputs.size()) {
      const std::vector<Fact> more = use_stated();
      if (more.size() != node.outputs.size()) {
        throw Error(fmt::format("has {} results, not {}", results.size(), node.outputs.size()));
      }
      results.insert(results.end(), more.begin() + static_cast<std::ptrdiff_t>(results.size()),
                     more.end());
    }
    results.resize(node.outputs.size());
    mark_constant(view, constant, results);
    return results;
  }

  template <class Stated>
  std::vector<Fact> infer_results(const NodeView& view, const Scope& scope,
                                  const Stated& use_stated) {
    const Node& node = view.node;
    if (node.domain.empty()) {
      if (node.op == "If") return if_results(view, scope);
      if (node.op == "Loop") return loop_results(view, scope);
      if (node.op == "Scan") return scan_results(view, scope);
    }
    if (const InferRow* row = find_row(node)) return row->infer(view);
    std::vector<Fact> results = use_stated();
    if (results.size() != node.outputs.size()) {
      throw Error("the operator is unknown and the file does not state the shapes of its results",
                  {}, "run shape inference on the model before saving it");
    }
    return results;
  }

  void mark_constant(const NodeView& view, bool constant, std::vector<Fact>& results) {
    const std::string& op = view.node.op;
    const bool random = has(op, "Random") || op == "Bernoulli" || op == "Multinomial" ||
                        op == "Dropout" || op == "If" || op == "Loop" || op == "Scan";
    const bool of_shape = op == "Shape" || op == "Size" || op == "EyeLike";
    for (Fact& fact : results) {
      fact.constant = view.node.domain.empty() && !random && (constant || of_shape);
    }
    for (const Fact& fact : results) {
      if (!fact.tensor) return;
      check(fact);
    }
    for (const Fact& fact : results)
      evaluated_ += fact.elements() <= kMaxKnown ? fact.elements() + 1 : 0;
    const bool known = evaluated_ < kMaxEvaluated && !random && evaluate(view, results);
    if (!known && (op == "NonZero" || op == "Compress" || op == "Unique")) {
      result_.bounds.push_back(op);
    }
  }

  // Types of a subgraph's outputs.
  std::vector<Fact> body(const NodeView& view, std::string_view attribute, const Scope& scope,
                         const std::vector<Fact>& inputs) {
    const Attribute* a = view.node.attribute(attribute);
    if (a == nullptr || !a->graph)
      throw Error(fmt::format("attribute '{}' must be a graph", attribute));
    Scope inner;
    inner.parent = &scope;
    // Some exporters list what a branch reads from around it as its inputs.
    const bool by_name = inputs.empty() && view.node.op == "If";
    if (!by_name && a->graph->inputs.size() != inputs.size()) {
      throw Error(fmt::format("the graph '{}' takes {} inputs, not {}", attribute,
                              a->graph->inputs.size(), inputs.size()));
    }
    for (std::size_t i = 0; i < a->graph->inputs.size(); ++i) {
      const std::string& name = a->graph->inputs[i].name;
      const Fact* outer = by_name ? scope.find(name) : &inputs[i];
      if (outer == nullptr) {
        throw Error(fmt::format("operand {} is computed by no node", in_quotes(name)));
      }
      inner.facts[name] = *outer;
    }
    graph(*a->graph, inner);
    std::vector<Fact> results;
    for (const ValueInfo& output : a->graph->outputs) {
      const Fact* fact = inner.find(output.name);
      if (fact == nullptr)
        throw Error(fmt::format("output {} is computed by no node", in_quotes(output.name)));
      results.push_back(*fact);
    }
    return results;
  }

  std::vector<Fact> if_results(const NodeView& view, const Scope& scope) {
    const auto condition = view.in(0).known;
    if (condition && condition->size() == 1 && !condition->floating) {
      return body(view, condition->ints[0] != 0 ? "then_branch" : "else_branch", scope, {});
    }
    std::vector<Fact> a = body(view, "then_branch", scope, {});
    const std::vector<Fact> b = body(view, "else_branch", scope, {});
    if (a.size() != b.size()) throw Error("the branches differ in their number of results");
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].dims != b[i].dims) {
        throw DependsOnData(fmt::format("result {} is {} in one branch and {} in the other", i,
                                        shape_text(a[i].dims), shape_text(b[i].dims)));
      }
      a[i].known = nullptr;
    }
    return a;
  }

  static Fact changing(Fact fact) {
    fact.known = nullptr;
    fact.constant = false;
    return fact;
  }

  std::vector<Fact> loop_results(const NodeView& view, const Scope& scope) {
    const std::size_t carried = view.node.inputs.size() < 2 ? 0 : view.node.inputs.size() - 2;
    std::vector<Fact> inputs = {{kInt64, {}, nullptr, false, true},
                                {kBool, {}, nullptr, false, true}};
    for (std::size_t i = 0; i < carried; ++i) inputs.push_back(changing(view.in(i + 2)));
    std::vector<Fact> results = body(view, "body", scope, inputs);
    if (results.size() < carried + 1) throw Error("the body gives too few results");
    results.erase(results.begin());
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i] = changing(std::move(results[i]));
      if (i < carried) {
        if (results[i].dims == inputs[i + 2].dims) continue;
        throw DependsOnData(fmt::format("state {} changes its shape from {} to {}", i,
                                        shape_text(inputs[i + 2].dims),
                                        shape_text(results[i].dims)));
      }
      const auto trips = view.has(0) ? view.ints(0) : std::nullopt;
      if (!trips || trips->size() != 1 || (*trips)[0] < 0) {
        throw DependsOnData("the number of iterations depends on data");
      }
      results[i].dims.insert(results[i].dims.begin(), (*trips)[0]);
    }
    return results;
  }

  std::vector<Fact> scan_results(const NodeView& view, const Scope& scope) {
    if (view.opset < 9) throw DependsOnData("the Scan of opset 8 is not read");
    const std::int64_t scanned = view.attr("num_scan_inputs", std::int64_t{0});
    const auto count = static_cast<std::int64_t>(view.count());
    if (scanned < 1 || scanned > count)
      throw Error(fmt::format("{} of {} operands are scanned", scanned, count));
    const auto states = static_cast<std::size_t>(count - scanned);
    const auto axes = view.attr_ints("scan_input_axes");
    const auto out_axes = view.attr_ints("scan_output_axes");
    std::int64_t length = 0;
    std::vector<Fact> inputs;
    for (std::size_t i = 0; i < view.count(); ++i) {
      inputs.push_back(changing(view.in(i)));
      if (i < states) continue;
      const std::size_t k = i - states;
      std::vector<std::int64_t>& dims = inputs.back().dims;
      const std::size_t axis = axis_in(axes && k < axes->size() ? (*axes)[k] : 0, view.rank(i));
      length = dims[axis];
      dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
    }
    std::vector<Fact> results = body(view, "body", scope, inputs);
    if (results.size() < states) throw Error("the body gives too few results");
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i] = changing(std::move(results[i]));
      if (i < states) continue;
      std::vector<std::int64_t>& dims = results[i].dims;
      const std::size_t k = i - states;
      const std::size_t axis = axis_in(out_axes && k < out_axes->size() ? (*out_axes)[k] : 0,
                                       static_cast<std::int64_t>(dims.size()) + 1);
      dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), length);
    }
    return results;
  }

  const ModelFile& model_;
  const Binding binding_;
  std::map<std::string, std::int64_t, std::less<>> symbols_;
  Inferred result_;
  double evaluated_ = 0;
  std::int64_t static_batch_ = 0;
};

std::unordered_map<std::string_view, const InferRow*> index_rows_by_name() {
  std::unordered_map<std::string_view, const InferRow*> rows;
  for (const auto family : {elementwise_rows, shape_rows, index_rows, reduce_rows, product_rows,
                            window_rows, network_rows}) {
    for (const InferRow& row : family()) rows.emplace(row.op, &row);
  }
  return rows;
}

}  // namespace

const InferRow* find_row(const Node& node) {
  static const auto kRows = index_rows_by_name();
  if (node.domain.empty()) {
    const auto it = kRows.find(node.op);
    return it == kRows.end() ? nullptr : it->second;
  }
  if (node.domain != "ai.onnx.ml") return nullptr;
  for (const InferRow& row : classifier_rows()) {
    if (row.op == node.op) return &row;
  }
  return nullptr;
}

InputRole input_role(const ValueInfo& info, std::size_t d) {
  const StatedDim& dim = (*info.dims)[d];
  // Some exporters write -1 for "unknown".
  if (dim.size && *dim.size != -1) return InputRole::kStatic;
  std::string name = dim.name;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (has(name, "batch") || is({"n", "b", "bs"})) return InputRole::kBatch;
  if (has(name, "seq") || has(name, "len") || has(name, "time") || has(name, "token") ||
      is({"s", "t", "l"})) {
    return InputRole::kSeq;
  }
  if (d == 0) return InputRole::kBatch;
  const bool tokens = d == 1 && (info.dims->size() == 2) && !is_floating_type(info.type);
  return tokens && name.empty() ? InputRole::kSeq : InputRole::kOther;
}

std::vector<const ValueInfo*> fed_inputs(const Subgraph& graph) {
  std::unordered_set<std::string_view> filled;
  for (const Tensor& t : graph.initializers) filled.insert(t.name);
  std::vector<const ValueInfo*> inputs;
  for (const ValueInfo& input : graph.inputs) {
    if (!filled.contains(input.name)) inputs.push_back(&input);
  }
  return inputs;
}

std::int64_t static_batch(const Subgraph& graph) {
  std::int64_t batch = 0;
  for (const ValueInfo* input : fed_inputs(graph)) {
    if (!input->dims || input->dims->size() < 2) continue;
    const StatedDim& first = (*input->dims)[0];
    if (!first.size || *first.size < 1 || (batch != 0 && *first.size != batch)) return 0;
    batch = *first.size;
  }
  return batch;
}

Inferred infer(const ModelFile& model, const Binding& binding) {
  return Engine(model, binding).run();
}

}  // namespace meshwright::onnx
