#include "import/onnx/emitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/spelling.h"
#include "ops/check_ops.h"
#include "ops/op_def.h"

namespace meshwright::onnx {
namespace {

constexpr std::size_t kMaxPath = 200;

const std::unordered_map<std::string_view, EmitFn>& emit_table() {
  static const auto kTable = [] {
    std::unordered_map<std::string_view, EmitFn> table;
    for (const auto family : {elementwise_emitters, shape_emitters, product_emitters,
                              window_emitters, norm_emitters, fused_emitters}) {
      for (const EmitRow& row : family()) table.emplace(row.op, row.emit);
    }
    return table;
  }();
  return kTable;
}

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
}

// Values that graphs inside attributes read from around them.
void captured(const Node& node, std::vector<std::string>& names) {
  for (const Attribute& a : node.attributes) {
    if (!a.graph) continue;
    for (const Node& inner : a.graph->nodes) {
      names.insert(names.end(), inner.inputs.begin(), inner.inputs.end());
      captured(inner, names);
    }
    for (const ValueInfo& output : a.graph->outputs) names.push_back(output.name);
  }
}

}  // namespace

std::string module_path(std::string_view name) {
  std::string path;
  for (const char c : name.substr(0, kMaxPath)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    const char next = plain ? c : c == '/' || c == ':' || c == '.' ? '.' : '_';
    if (next == '.' && (path.empty() || path.back() == '.')) continue;
    path += next;
  }
  while (!path.empty() && path.back() == '.') path.pop_back();
  return path;
}

Emitter::Emitter(const Sources& sources)
    : sources_(sources),
      builder_(sources.model.graph.name.empty() ? "onnx" : module_path(sources.model.graph.name),
               sources.options.dtype) {
  for (const Tensor& t : sources.model.graph.initializers) initializers_[t.name] = &t;
  for (const std::size_t i : sources.inferred.order) {
    const Node& node = sources.model.graph.nodes[i];
    for (const std::string& name : node.inputs) used_.insert(name);
    std::vector<std::string> inner;
    captured(node, inner);
    used_.insert(inner.begin(), inner.end());
    // Running statistics are not trained.
    if (node.op != "BatchNormalization") continue;
    for (std::size_t k = 3; k < std::min<std::size_t>(5, node.inputs.size()); ++k) {
      statistics_.insert(node.inputs[k]);
    }
  }
  for (const ValueInfo& output : sources.model.graph.outputs) used_.insert(output.name);
}

const Fact& Emitter::fact(const std::string& name) const {
  const auto it = sources_.inferred.facts.find(name);
  if (it == sources_.inferred.facts.end()) {
    throw Error(fmt::format("operand {} is computed by no node", in_quotes(name)));
  }
  return it->second;
}

bool Emitter::is_used(std::size_t k) const {
  return k < node_->outputs.size() && !node_->outputs[k].empty() &&
         used_.contains(node_->outputs[k]);
}

bool Emitter::is_parameter(std::size_t i) const {
  if (!has(i)) return false;
  const std::string& name = node_->inputs[i];
  return initializers_.contains(name) && !fact(name).constant && !statistics_.contains(name);
}

bool Emitter::is_matrix_parameter(std::size_t i) const {
  if (!has(i) || view_->rank(i) != 2 || !is_floating(i)) return false;
  return is_parameter(i) || transposed_.contains(node_->inputs[i]);
}

DimRole Emitter::role(const std::string& name, std::size_t d) const {
  const auto it = sources_.roles.find(name);
  return it == sources_.roles.end() || d >= it->second.size() ? DimRole() : it->second[d];
}

bool Emitter::is_batch(std::size_t i, std::size_t d) const {
  return role(node_->inputs[i], d).kind == DimRole::Kind::kBatch;
}

std::optional<Dim> Emitter::hint(const std::string& name, std::size_t d) const {
  const auto it = sources_.names.find(name);
  if (it == sources_.names.end() || d >= it->second.size() || it->second[d].name.empty()) {
    return std::nullopt;
  }
  return it->second[d];
}

Dim Emitter::dim_of(const std::string& name, std::size_t d) const {
  const std::int64_t size = fact(name).dims[d];
  const DimRole r = role(name, d);
  if (r.kind == DimRole::Kind::kBatch) return {"batch", size, r.unit};
  if (r.kind == DimRole::Kind::kSeq) return {"seq", size, 1};
  if (const auto named = hint(name, d)) return {named->name, size, named->unit};
  return {size == 1 ? "one" : "features", size, 1};
}

DType Emitter::dtype_of(int type) const {
  switch (type) {
    case kFloat:
    case kFloat16:
    case kDouble:
    case 16:
      return sources_.options.dtype;
    case kInt64:
    case kUint64:
      return DType::kI64;
    case kBool:
      return DType::kBool;
    default:
      break;
  }
  const int bits = element_bits(type);
  if (is_floating_type(type)) return DType::kF8;
  if (bits == 0 || bits > 32) {
    throw Error(fmt::format("elements of type {} have no place in a training graph",
                            element_type_name(type)));
  }
  return bits > 8 ? DType::kI32 : DType::kU8;
}

TensorType Emitter::type_of(const std::string& name, const Fact& f) const {
  if (!f.tensor) throw Error(fmt::format("value {} is no tensor", in_quotes(name)));
  TensorType type{dtype_of(f.type), {}};
  for (std::size_t d = 0; d < f.dims.size(); ++d) {
    if (f.dims[d] == 0) {
      throw Error(
          fmt::format("value {} is empty: its shape is {}", in_quotes(name), shape_text(f.dims)));
    }
    type.dims.push_back(dim_of(name, d));
  }
  return type;
}

std::string Emitter::unique(std::string name) {
  if (name.empty()) name = "value";
  if (is_digits(name)) name = "n" + name;
  if (names_.insert(name).second) return name;
  for (int i = 2;; ++i) {
    std::string next = fmt::format("{}_{}", name, i);
    if (names_.insert(next).second) return next;
  }
}

std::string Emitter::op_name() {
  ++made_;
  std::string name = module_path(node_->name);
  if (name.empty() && !node_->outputs.empty()) name = module_path(node_->outputs[0]);
  if (name.empty() || is_digits(name)) name = fmt::format("{}_{}", node_->op, name);
  return unique(name);
}

ValueId Emitter::value(const std::string& name) {
  const auto it = values_.find(name);
  if (it != values_.end()) return it->second;
  const Fact& f = fact(name);
  if (const auto t = transposed_.find(name); t != transposed_.end()) {
    // A transposed parameter that is needed as it is.
    const ValueId base = value(t->second);
    const ValueId id = op("transpose", {base}, {{"perm", std::vector<std::int64_t>{1, 0}}});
    return values_[name] = id;
  }
  TensorType type = type_of(name, f);
  std::string path = unique(module_path(name));
  const bool trained = initializers_.contains(name) && !f.constant && !statistics_.contains(name);
  const ValueId id = trained ? builder_.parameter(path, std::move(type.dims))
                             : builder_.buffer(path, std::move(type));
  return values_[name] = id;
}

ValueId Emitter::in(std::size_t i) {
  view_->in(i);
  const std::string& name = node_->inputs[i];
  const ValueId id = value(name);
  if (!stored_transposed_.contains(name)) return id;
  return op("transpose", {id}, {{"perm", std::vector<std::int64_t>{1, 0}}});
}

ValueId Emitter::parameter(std::size_t i, std::vector<Dim> dims) {
  const std::string& name = node_->inputs[i];
  if (values_.contains(name) || !is_parameter(i)) return in(i);
  const ValueId id = builder_.parameter(unique(module_path(name)), std::move(dims));
  return values_[name] = id;
}

ValueId Emitter::vector(std::size_t i, Dim like) {
  const Fact& f = view_->in(i);
  if (f.elements() != static_cast<double>(like.size)) {
    throw Error(
        fmt::format("operand {} must have {} elements, not {}", i, like.size, shape_text(f.dims)));
  }
  const ValueId id = f.dims.size() == 1 ? parameter(i, {like}) : in(i);
  return f.dims.size() == 1 ? id : reshape(id, {like.size}, "");
}

ValueId Emitter::matrix(std::size_t i, bool transposed, const Dim& rows, const Dim& columns) {
  std::string name = node_->inputs[i];
  if (const auto t = transposed_.find(name); t != transposed_.end()) {
    name = t->second;
    transposed = !transposed;
  }
  const auto it = values_.find(name);
  if (it == values_.end()) {
    const ValueId id = builder_.parameter(unique(module_path(name)), {rows, columns});
    if (transposed) stored_transposed_.insert(name);
    return values_[name] = id;
  }
  const bool as_wanted = stored_transposed_.contains(name) == transposed;
  if (as_wanted) return it->second;
  return op("transpose", {it->second}, {{"perm", std::vector<std::int64_t>{1, 0}}});
}

// Two factors of one operator that carry the same name would be split over the same devices: a
// product of queries and keys, both "seq". The later one gets a name that is never split.
std::vector<ValueId> Emitter::without_clashes(std::string_view kind, std::vector<ValueId> inputs,
                                              const Attrs& attrs) {
  static const std::set<std::string_view> kSplit = {"batch",    "seq", "heads",
                                                    "kv_heads", "ffn", "vocab"};
  if (kind == "opaque" || kind == "reshape" || kind == "attention") return inputs;
  std::vector<TensorType> types;
  for (const ValueId id : inputs) types.push_back(type(id));
  const Rule rule = rule_of(find_op(kind), {attrs, types, {}});
  std::set<std::string> seen;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const Factor& factor = rule.factors[f];
    if (factor.kind == FactorKind::kFrozen || !kSplit.contains(factor.label)) continue;
    if (seen.insert(factor.label).second) continue;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      for (std::size_t d = 0; d < rule.inputs[i].dims.size(); ++d) {
        const std::vector<int>& group = rule.inputs[i].dims[d].factors;
        if (group.size() != 1 || group[0] != static_cast<int>(f)) continue;
        inputs[i] = rename(inputs[i], d, factor.label + "_2");
      }
    }
  }
  return inputs;
}

std::vector<ValueId> Emitter::ops(std::string_view kind, std::vector<ValueId> inputs, Attrs attrs) {
  inputs = without_clashes(kind, std::move(inputs), attrs);
  const std::string name = op_name();
  std::vector<ValueId> results = builder_.add(kind, name, std::move(inputs), std::move(attrs));
  return results;
}

ValueId Emitter::op(std::string_view kind, std::vector<ValueId> inputs, Attrs attrs) {
  const std::vector<ValueId> results = ops(kind, std::move(inputs), std::move(attrs));
  MW_CHECK(results.size() == 1, fmt::format("{} has {} results", kind, results.size()));
  return results[0];
}

ValueId Emitter::pointwise(std::string_view fn, std::vector<ValueId> inputs) {
  return op("pointwise", std::move(inputs), {{"fn", std::string(fn)}});
}

ValueId Emitter::transpose(ValueId x, const std::vector<std::int64_t>& perm) {
  if (std::ranges::is_sorted(perm)) return x;
  return op("transpose", {x}, {{"perm", perm}});
}

void Emitter::result(std::size_t k, ValueId id) {
  const std::string& name = node_->outputs[k];
  if (name.empty()) return;
  const Fact& f = fact(name);
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : type(id).dims) sizes.push_back(dim.size);
  MW_CHECK(sizes == f.dims, fmt::format("{}: result {} is {}, inferred {}", node_label(*node_),
                                        name, shape_text(sizes), shape_text(f.dims)));
  // The name "batch" decides what micro-batches scale, so it must be right.
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const DimRole r = role(name, d);
    const bool named = type(id).dims[d].name == "batch";
    const bool batch = r.kind == DimRole::Kind::kBatch;
    if (named && !batch) id = rename(id, d, "rows");
    if (!named && batch && r.unit == 1) id = rename(id, d, "batch");
  }
  values_[name] = id;
}

void Emitter::opaque() {
  std::vector<std::string> names = node_->inputs;
  captured(*node_, names);
  std::vector<ValueId> inputs;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty() || !sources_.inferred.facts.contains(name) || !seen.insert(name).second)
      continue;
    const bool outside =
        values_.contains(name) || initializers_.contains(name) || fact(name).constant;
    if (!outside || fact(name).elements() == 0) continue;
    inputs.push_back(value(name));
  }
  std::string results;
  std::vector<std::size_t> kept;
  for (std::size_t k = 0; k < node_->outputs.size(); ++k) {
    if (node_->outputs[k].empty()) continue;
    kept.push_back(k);
    if (kept.size() > 1) results += "; ";
    results += to_string(type_of(node_->outputs[k], fact(node_->outputs[k])));
  }
  const std::string kind = node_->domain.empty() ? node_->op : node_->domain + "." + node_->op;
  if (inputs.empty()) {
    // A source of numbers (random, mostly): there is nothing that it computes from.
    for (const std::size_t k : kept) {
      const std::string& name = node_->outputs[k];
      values_[name] = builder_.buffer(unique(module_path(name)), type_of(name, fact(name)));
    }
    count(fmt::format("{} without operands taken as constant", kind));
    return;
  }
  ++opaque_[kind];
  const std::vector<ValueId> ids =
      ops("opaque", std::move(inputs), {{"op", kind.substr(0, 200)}, {"results", results}});
  for (std::size_t i = 0; i < kept.size(); ++i) result(kept[i], ids[i]);
}

bool Emitter::is_folded(const Node& node) const {
  return std::ranges::all_of(
      node.outputs, [&](const std::string& name) { return name.empty() || fact(name).constant; });
}

void Emitter::emit_node(const Node& node) {
  if (is_folded(node)) {
    count("folded nodes");
    return;
  }
  std::vector<const Fact*> inputs;
  for (const std::string& name : node.inputs) {
    inputs.push_back(name.empty() ? nullptr : &fact(name));
  }
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  const auto opset = sources_.model.opsets.find(node.domain);
  const NodeView view(node, opset == sources_.model.opsets.end() ? 24 : opset->second,
                      std::move(inputs));
  node_ = &node;
  view_ = &view;
  made_ = 0;
  // A parameter seen from the other side is still that parameter.
  if (node.op == "Transpose" && is_matrix_parameter(0) && !transposed_.contains(node.inputs[0])) {
    const auto perm = view.attr_ints("perm");
    if (!perm || (*perm)[0] == 1) {
      transposed_[node.outputs[0]] = node.inputs[0];
      return;
    }
  }
  const auto it = emit_table().find(node.op);
  const bool own = node.domain.empty() || node.domain == "meshwright";
  const bool stated = std::ranges::any_of(
      node.outputs, [&](const std::string& name) { return !name.empty() && fact(name).stated; });
  if (!own || stated || it == emit_table().end()) {
    opaque();
    return;
  }
  try {
    it->second(*this);
  } catch (const DependsOnData&) {
    // The file states the result's shape; what is computed is not known.
    if (made_ > 0) throw;
    opaque();
  }
}

void Emitter::emit_inputs() {
  for (const ValueInfo* input : fed_inputs(sources_.model.graph)) {
    const Fact& f = fact(input->name);
    if (f.elements() == 0) {
      count("empty inputs left out");
      continue;
    }
    try {
      values_[input->name] =
          builder_.input(unique(module_path(input->name)), type_of(input->name, f));
    } catch (const Error& e) {
      throw e.within(fmt::format("input {}", in_quotes(input->name)));
    }
  }
}

Model Emitter::run() {
  emit_inputs();
  for (const std::size_t i : sources_.inferred.order) {
    const Node& node = sources_.model.graph.nodes[i];
    try {
      emit_node(node);
    } catch (const Error& e) {
      const std::string label = node_label(node);
      if (e.where().starts_with(label)) throw;
      throw e.within(label);
    }
  }
  return finish();
}

Model Emitter::finish() {
  Model model;
  model.family = "onnx";
  model.graph = builder_.finish();
  const auto say = [&](std::string text) { model.notes.push_back(std::move(text)); };
  if (!opaque_.empty()) {
    std::string list;
    for (const auto& [op, n] : opaque_)
      list += fmt::format("{}{} x {}", list.empty() ? "" : ", ", n, op);
    say("replicate-only: " + list);
  }
  for (const auto& [what, n] : counts_) {
    say(what == "folded nodes" ? fmt::format("{} nodes computed from constants alone are folded", n)
                               : fmt::format("{} {}", n, what));
  }
  return model;
}

}  // namespace meshwright::onnx
