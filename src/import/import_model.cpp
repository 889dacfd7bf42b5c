#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/spelling.h"
#include "import/hf/family.h"
#include "import/import.h"
#include "import/onnx/mapped_file.h"
#include "import/onnx/onnx.h"
#include "ops/check_ops.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;

// A 126-layer configuration is 2 KB, a graph of 100,000 operators about 30 MB.
constexpr std::uint64_t kMaxConfigBytes = 64ull << 20;
constexpr std::uint64_t kMaxGraphBytes = 512ull << 20;

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Largest dim of this name among the graph's inputs; 1 when there is none.
std::int64_t input_size(const Graph& graph, std::string_view name) {
  std::int64_t size = 1;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kInput) continue;
    for (const Dim& dim : value.type.dims) {
      if (dim.name == name) size = std::max(size, dim.size);
    }
  }
  return size;
}

// The same graph for another number of samples. A unit of a batch dimension is what one sample has
// of it (its windows, in Swin).
void set_batch(Model& model, std::int64_t batch, const std::string& source) {
  for (Value& value : model.graph.values) {
    for (Dim& dim : value.type.dims) {
      const bool whole = dim.name == "batch" && dim.size == model.global_batch * dim.unit;
      if (whole) dim.size = batch * dim.unit;
    }
  }
  try {
    check_graph(model.graph);
    check_ops(model.graph);
  } catch (const Error& e) {
    throw Error(fmt::format("the graph is written for a batch of {} and has none of {}: {}",
                            model.global_batch, batch, e.what()),
                source);
  }
  model.global_batch = batch;
}

// A graph keeps its own batch where the options leave theirs alone, and its own sequence length
// always: lengths also stand in attributes.
Model import_graph(const fs::path& path, const ImportOptions& options) {
  const std::string source = path.string();
  Model model;
  model.graph = parse_graph(read_file(path, kMaxGraphBytes), source);
  check_ops(model.graph);
  model.family = "graph";
  model.global_batch = input_size(model.graph, "batch");
  model.seq = input_size(model.graph, "seq");
  const hf::TokenShape shape = hf::token_shape(options, model.seq);
  if (options.seq != 0 && options.seq != model.seq) {
    throw Error(fmt::format("the graph is written for sequences of {} and cannot have {}",
                            model.seq, options.seq),
                source, "leave --seq out");
  }
  const bool batched = std::ranges::any_of(model.graph.values, [](const Value& value) {
    return std::ranges::any_of(value.type.dims, [](const Dim& d) { return d.name == "batch"; });
  });
  if (!batched) {
    model.notes.push_back(
        "no dimension is named 'batch': the graph is one sample, which nothing splits");
  } else if (options.global_batch != ImportOptions().global_batch) {
    set_batch(model, shape.batch, source);
  }
  return model;
}

Model import_file(const fs::path& path, const ImportOptions& options) {
  if (path.extension() == ".graph") return import_graph(path, options);
  if (path.extension() == ".onnx") {
    const onnx::MappedFile file(path);
    return onnx::import_model(file.bytes(), path.string(), options);
  }
  return import_hf_config(read_file(path, kMaxConfigBytes), path.string(), options);
}

[[noreturn]] void refuse_name(std::string_view text) {
  std::vector<std::string> names;
  for (const NamedModel& model : named_models()) names.emplace_back(model.name);
  std::string nearest;
  for (const std::string& name : nearest_names(text, names, 3)) {
    nearest += fmt::format("{}{}", nearest.empty() ? "" : ", ", name);
  }
  throw Error(fmt::format("unknown model {}", in_quotes(text)), {},
              fmt::format("did you mean {}? `meshwright models` lists all; a config.json, its "
                          "directory, a .onnx or a .graph file works too",
                          nearest));
}

}  // namespace

Model import_model(std::string_view text, const ImportOptions& options) {
  if (text.empty())
    throw Error("no model is given", {}, "a name, a config.json, a .onnx or a .graph file");
  for (const NamedModel& model : named_models()) {
    if (same_name(model.name, text)) return import_hf_config(model.config, model.name, options);
  }
  const fs::path path(text);
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const fs::path config = path / "config.json";
    if (!fs::exists(config, error)) {
      throw Error("the directory has no config.json", path.string(),
                  "pass the directory of a Hugging Face model");
    }
    return import_file(config, options);
  }
  const bool looks_like_path = text.find('/') != std::string_view::npos ||
                               path.extension() == ".json" || path.extension() == ".graph" ||
                               path.extension() == ".onnx";
  if (looks_like_path || fs::exists(path, error)) return import_file(path, options);
  refuse_name(text);
}

}  // namespace meshwright
