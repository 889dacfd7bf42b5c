// From the bytes of a model to a Graph: decode, infer shapes, find out what the batch and the
// sequence reach, fuse what exporters take apart, emit.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/spelling.h"
#include "import/hf/family.h"
#include "import/onnx/emitter.h"
#include "import/onnx/fuse.h"
#include "import/onnx/onnx.h"
#include "ops/check_ops.h"

namespace meshwright::onnx {
namespace {

constexpr std::int64_t kDefaultSeq = 128;
constexpr std::int64_t kNewestOpset = 24;

bool has_role(const Subgraph& graph, InputRole role) {
  for (const ValueInfo* input : fed_inputs(graph)) {
    for (std::size_t d = 0; input->dims && d < input->dims->size(); ++d) {
      if (input_role(*input, d) == role) return true;
    }
  }
  return false;
}

// The model at another size, or nothing where it has none.
std::optional<Inferred> probe(const ModelFile& model, const Binding& binding) {
  try {
    return infer(model, binding);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Dimensions that double with the batch hold samples; those that change with the sequence length
// are positions. Nothing is known of a model that exists at one size only.
Roles find_roles(const ModelFile& model, const Inferred& base, const Binding& binding,
                 bool batched) {
  Binding twice = binding;
  twice.batch *= 2;
  Binding longer = binding;
  longer.seq *= 2;
  Binding shorter = binding;
  shorter.seq = std::max<std::int64_t>(1, binding.seq / 2);
  const auto wide = batched ? probe(model, twice) : std::nullopt;
  auto stretched = probe(model, longer);
  if (!stretched) stretched = probe(model, shorter);
  Roles roles;
  for (const auto& [name, fact] : base.facts) {
    std::vector<DimRole> of(fact.dims.size());
    const auto same_rank = [&](const std::optional<Inferred>& other) -> const Fact* {
      if (!other) return nullptr;
      const auto it = other->facts.find(name);
      return it == other->facts.end() || it->second.dims.size() != fact.dims.size() ? nullptr
                                                                                    : &it->second;
    };
    const Fact* double_batch = same_rank(wide);
    const Fact* other_seq = same_rank(stretched);
    for (std::size_t d = 0; d < of.size(); ++d) {
      const std::int64_t size = fact.dims[d];
      if (double_batch != nullptr && size > 0 && double_batch->dims[d] == 2 * size &&
          size % binding.batch == 0) {
        of[d] = {DimRole::Kind::kBatch, size / binding.batch};
      } else if (other_seq != nullptr && other_seq->dims[d] != size) {
        of[d] = {DimRole::Kind::kSeq, 1};
      }
    }
    roles[name] = std::move(of);
  }
  return roles;
}

std::int64_t input_size(const Graph& graph, std::string_view name) {
  std::int64_t size = 0;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kInput) continue;
    for (const Dim& dim : value.type.dims) {
      if (dim.name == name) size = std::max(size, dim.size / dim.unit);
    }
  }
  return size;
}

void note_inputs(const ModelFile& model, const Binding& binding, Model& result) {
  std::string unknown;
  for (const ValueInfo* input : fed_inputs(model.graph)) {
    for (std::size_t d = 0; input->dims && d < input->dims->size(); ++d) {
      if (input_role(*input, d) != InputRole::kOther) continue;
      const std::string& name = (*input->dims)[d].name;
      unknown +=
          fmt::format("{}dimension {} of input {}", unknown.empty() ? "" : ", ",
                      name.empty() ? std::to_string(d) : in_quotes(name), in_quotes(input->name));
    }
  }
  if (!unknown.empty())
    result.notes.push_back(fmt::format("taken as {}: {}", binding.other, unknown));
}

// Names that inputs' dimensions have by position, where nothing else names them.
void name_inputs(const ModelFile& model, std::unordered_map<std::string, std::vector<Dim>>& names) {
  static const std::vector<std::vector<std::string>> kByRank = {
      {},
      {"samples"},
      {"samples", "features"},
      {"samples", "seq", "features"},
      {"samples", "channels", "height", "width"},
      {"samples", "channels", "depth", "height", "width"}};
  for (const ValueInfo* input : fed_inputs(model.graph)) {
    if (!input->dims || input->dims->size() >= kByRank.size()) continue;
    std::vector<Dim>& dims = names[input->name];
    const bool tokens = input->dims->size() == 2 && !is_floating_type(input->type);
    for (std::size_t d = 0; d < input->dims->size(); ++d) {
      std::string name = module_path((*input->dims)[d].name);
      if (name.empty()) name = tokens && d == 1 ? "seq" : kByRank[input->dims->size()][d];
      if (name == "batch") name = "samples";  // Only what really doubles with the batch is "batch".
      dims.push_back({name, 0, 1});
    }
  }
}

// Initializers that nothing reads.
int count_unused(const Subgraph& graph) {
  std::unordered_set<std::string_view> used;
  const auto use = [&](const auto& self, const Subgraph& g) -> void {
    for (const Node& node : g.nodes) {
      used.insert(node.inputs.begin(), node.inputs.end());
      for (const Attribute& a : node.attributes) {
        if (a.graph) self(self, *a.graph);
      }
    }
    for (const ValueInfo& output : g.outputs) used.insert(output.name);
  };
  use(use, graph);
  return static_cast<int>(std::ranges::count_if(
      graph.initializers, [&](const Tensor& t) { return !used.contains(t.name); }));
}

// Weights that nodes hold, or only say the shape of, become initializers: they are trained. (Other
// constants are not.)
void lift_weights(Subgraph& graph) {
  std::unordered_set<std::string_view> read;
  for (const Node& node : graph.nodes) {
    static const std::unordered_set<std::string_view> kReadWeights = {"BatchNormalization",
                                                                      "Conv",
                                                                      "ConvTranspose",
                                                                      "GRU",
                                                                      "Gemm",
                                                                      "GroupNormalization",
                                                                      "InstanceNormalization",
                                                                      "LSTM",
                                                                      "LayerNormalization",
                                                                      "MatMul",
                                                                      "PRelu",
                                                                      "RNN"};
    if (node.op == "Gather" && !node.inputs.empty()) read.insert(node.inputs[0]);
    if (!kReadWeights.contains(node.op)) continue;
    for (std::size_t i = 1; i < node.inputs.size(); ++i) read.insert(node.inputs[i]);
  }
  std::unordered_map<std::string_view, const Tensor*> initializers;
  for (const Tensor& t : graph.initializers) initializers[t.name] = &t;
  std::vector<Tensor> lifted;
  std::unordered_set<const Node*> gone;
  for (const Node& node : graph.nodes) {
    if (!node.domain.empty() || node.outputs.size() != 1 || !read.contains(node.outputs[0]))
      continue;
    const Attribute* value = node.attribute("value");
    const bool typed = value != nullptr && value->tensor;
    Tensor weight;
    if (node.op == "Constant" && typed) {
      weight = *value->tensor;
    } else if (node.op == "ConstantOfShape" && !node.inputs.empty()) {
      const auto shape = initializers.find(node.inputs[0]);
      if (shape == initializers.end() || !shape->second->known || shape->second->known->floating)
        continue;
      weight.type = typed ? value->tensor->type : static_cast<int>(kFloat);
      weight.dims = shape->second->known->ints;
    } else {
      continue;
    }
    const bool many = std::ranges::any_of(weight.dims, [](std::int64_t d) { return d > 1; });
    const bool legal = std::ranges::none_of(weight.dims, [](std::int64_t d) { return d < 1; });
    if (!is_floating_type(weight.type) || !many || !legal) continue;
    weight.name = node.outputs[0];
    lifted.push_back(std::move(weight));
    gone.insert(&node);
  }
  std::vector<Node> rest;
  for (Node& node : graph.nodes) {
    if (!gone.contains(&node)) rest.push_back(std::move(node));
  }
  graph.nodes = std::move(rest);
  graph.initializers.insert(graph.initializers.end(), lifted.begin(), lifted.end());
}

// What masks hold, told at a size at which they have few elements.
std::optional<Inferred> infer_small(const ModelFile& model, const Binding& binding) {
  Binding small = binding;
  small.masks_are_set = true;
  if (has_role(model.graph, InputRole::kSeq)) small.seq = 8;
  if (has_role(model.graph, InputRole::kBatch)) small.batch = 2;
  return probe(model, small);
}

Model import_decoded(ModelFile model, const ImportOptions& options) {
  inline_functions(model);
  const int unused = count_unused(model.graph);
  lift_weights(model.graph);
  const hf::TokenShape shape = hf::token_shape(options, kDefaultSeq);
  const bool wanted_batch = options.global_batch != ImportOptions().global_batch;
  const bool dynamic = has_role(model.graph, InputRole::kBatch);
  const std::int64_t whole = static_batch(model.graph);
  Binding binding;
  binding.seq = shape.seq;
  binding.batch = dynamic || wanted_batch || whole == 0 ? shape.batch : whole;
  binding.replace_static_batch = !dynamic && whole > 0;

  Inferred base;
  try {
    base = infer(model, binding);
  } catch (const Error& e) {
    if (!binding.replace_static_batch || binding.batch == whole) throw;
    throw Error(fmt::format("the model was exported for a batch of {} and has none of {}: {}",
                            whole, binding.batch, e.message()),
                e.where(), "export it with a dynamic batch, or leave --global-batch out");
  }
  Roles roles = find_roles(model, base, binding, dynamic || binding.replace_static_batch);

  const std::optional<Inferred> small = infer_small(model, binding);
  Rewriter rewriter(model, base);
  rewriter.drop_identities();
  fuse_norms(rewriter);
  fuse_activations(rewriter);
  fuse_attention(rewriter, small ? &*small : nullptr);
  fuse_biases(rewriter);
  split_projections(rewriter);
  auto names = name_dims(rewriter);
  rewriter.finish();
  for (const auto& [name, like] : rewriter.added()) roles[name] = roles[like];
  name_inputs(model, names);
  const Sources sources{model, base, roles, options, names};
  Model result = Emitter(sources).run();
  std::string fused;
  for (const auto& [what, n] : rewriter.counts())
    fused += fmt::format("{}{} {}", fused.empty() ? "" : ", ", n, what);
  if (!fused.empty()) {
    result.notes.push_back(fmt::format("fused back from {} nodes: {}", rewriter.swept(), fused));
  }
  if (unused > 0) {
    result.notes.push_back(fmt::format("{} initializers that no node reads are left out", unused));
  }
  const std::int64_t batch = input_size(result.graph, "batch");
  if (batch == 0 && wanted_batch) {
    throw Error(
        fmt::format("the model has no dimension that grows with the batch, so it has none of {}",
                    options.global_batch),
        {}, "leave --global-batch out");
  }
  result.global_batch = std::max<std::int64_t>(1, batch);
  result.seq = std::max<std::int64_t>(1, input_size(result.graph, "seq"));
  if (options.seq != 0 && options.seq != result.seq) {
    throw Error(fmt::format("the model is written for sequences of {} and cannot have {}",
                            result.seq, options.seq),
                {}, "leave --seq out");
  }
  if (batch == 0 && !result.graph.ops.empty()) {
    result.notes.push_back("no dimension grows with the batch: samples cannot be split");
  }
  note_inputs(model, binding, result);
  for (const std::string& op : base.bounds) {
    result.notes.push_back(
        fmt::format("the size of {}'s result depends on data and is taken at its largest", op));
  }
  const auto opset = model.opsets.find("");
  if (opset != model.opsets.end() && opset->second > kNewestOpset) {
    result.notes.push_back(fmt::format("opset {} is newer than {}; its operators are read as in {}",
                                       opset->second, kNewestOpset, kNewestOpset));
  }
  return result;
}

}  // namespace

Model import_model(std::string_view bytes, std::string_view source, const ImportOptions& options) {
  try {
    Model model = import_decoded(decode_model(bytes), options);
    check_ops(model.graph);
    return model;
  } catch (const Error& e) {
    throw e.within(source);
  }
}

}  // namespace meshwright::onnx
