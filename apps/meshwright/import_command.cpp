#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "cli.h"
#include "import/import.h"
#include "ops/graph_work.h"
#include "plan/segments.h"

namespace meshwright::cli {
namespace {

struct ImportCommandOptions {
  std::string model;
  ImportOptions import;
  std::string precision = "bf16";
  std::string output;
  bool force = false;
};

int run(ImportCommandOptions o) {
  if (o.precision != "bf16" && o.precision != "f16" && o.precision != "f32" &&
      o.precision != "f8") {
    throw Error(fmt::format("unknown type '{}'", o.precision), "--precision",
                "legal: bf16, f16, f32, f8");
  }
  o.import.dtype = o.precision == "f8" ? DType::kBf16 : parse_dtype(o.precision);
  const Model model = import_model(o.model, o.import);
  const Graph& graph = model.graph;
  if (graph.ops.empty()) throw Error("has no operators", o.model);
  const auto segments = find_segments(graph);
  if (!o.output.empty()) write_file(o.output, print_graph(graph), o.force);
  print(fmt::format("{}: {} parameters, {} operators, {} values\n", graph.name,
                    format_integer(static_cast<long long>(parameter_count(graph))),
                    graph.ops.size(), graph.values.size()));
  print(fmt::format("{} segments of {} kinds; batch {}, {} positions\n", segments.size(),
                    shape_class_count(segments), model.global_batch, model.seq));
  std::map<std::string, int> kinds;
  for (const Op& op : graph.ops) ++kinds[op.kind];
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [kind, count] : kinds) sorted.emplace_back(-count, kind);
  std::sort(sorted.begin(), sorted.end());
  print("\noperators\n");
  for (const auto& [count, kind] : sorted) print(fmt::format("  {:>7} {}\n", -count, kind));
  if (!model.notes.empty()) print("\nnotes\n");
  for (const std::string& note : model.notes) print(fmt::format("  {}\n", note));
  if (!o.output.empty()) print(fmt::format("\ngraph written to {}\n", o.output));
  return kOk;
}

constexpr const char* kFooter = R"(Examples:
  meshwright import model.onnx --global-batch 32
  meshwright import llama-3-8b --seq 4096 -o llama.graph
  meshwright plan llama.graph dgx-h100:1)";

}  // namespace

void add_import(CLI::App& app, Action& action) {
  auto o = std::make_shared<ImportCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "import", "Read a model, say what it consists of, and write it as a graph file");
  command->footer(kFooter);
  command
      ->add_option("MODEL", o->model,
                   "A model's name, a Hugging Face config.json, an ONNX file, or a .graph file")
      ->required();
  command
      ->add_option("-b,--global-batch", o->import.global_batch,
                   "Samples per optimizer step (default: 1)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command->add_option("-s,--seq", o->import.seq, "Tokens per sequence (0 = the model's own)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  command->add_option("--precision", o->precision, "Element type: bf16, f16, f32, f8");
  command->add_option("--attention", o->import.attention, "flash or unfused")
      ->check(CLI::IsMember({"flash", "unfused"}));
  command->add_option("-o,--output", o->output, "Write the graph here");
  command->add_flag("--force", o->force, "Overwrite the output file");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
