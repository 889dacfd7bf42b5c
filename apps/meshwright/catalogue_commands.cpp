#include <fmt/format.h>

#include <memory>

#include "base/format.h"
#include "cli.h"
#include "cluster/cluster.h"
#include "import/import.h"
#include "ops/graph_work.h"
#include "report/text_table.h"

namespace meshwright::cli {
namespace {

struct ModelsOptions {
  std::string model;
  bool graph = false;
};

int run_models(const ModelsOptions& o) {
  if (o.model.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const NamedModel& m : named_models())
      rows.push_back({std::string(m.name), std::string(m.summary)});
    print(text_table({"model", "what it is"}, rows, 0, {true, true}));
    return kOk;
  }
  const Model model = import_model(o.model, {});
  if (o.graph) {
    print(print_graph(model.graph));
    return kOk;
  }
  print(fmt::format("family       {}\nparameters   {}\noperators    {}\nsequence     {}\n",
                    model.family,
                    format_integer(static_cast<long long>(parameter_count(model.graph))),
                    model.graph.ops.size(), model.seq));
  print(fmt::format("FLOPs        {} per sequence and training step\n",
                    format_count(model_flops(model.graph).value)));
  for (const std::string& note : model.notes) print("note         " + note + "\n");
  return kOk;
}

struct ClustersOptions {
  std::string cluster;
  bool json = false;
};

int run_clusters(const ClustersOptions& o) {
  if (!o.cluster.empty()) {
    const Cluster cluster = read_cluster(o.cluster);
    print(o.json ? list_cluster(cluster) : describe(cluster));
    return kOk;
  }
  std::vector<std::vector<std::string>> rows;
  for (const ClusterPreset& p : cluster_presets()) {
    rows.push_back({std::string(p.name) + ":HOSTS", std::string(p.summary)});
  }
  print(text_table({"shorthand", "one host"}, rows, 0, {true, true}));
  rows.clear();
  for (const DeviceKind& k : device_catalogue()) {
    rows.push_back({k.name, format_bytes(k.memory),
                    fmt::format("{:.0f}", k.memory_bandwidth.value / 1e9),
                    fmt::format("{:.0f}", std::max(k.bf16.value, k.fp16.value) / 1e12),
                    fmt::format("{:.0f}", k.fp8.value / 1e12),
                    fmt::format("{:.0f}", k.device_link.value / 1e9)});
  }
  print("\n" +
        text_table({"device", "memory", "GB/s", "16-bit TFLOP/s", "fp8 TFLOP/s", "link GB/s"}, rows,
                   0));
  print("\nDEVICE:HOSTSxDEVICES@NETWORK joins any of them: a100-80:4x8@ib200\n");
  return kOk;
}

}  // namespace

void add_models(CLI::App& app, Action& action) {
  auto o = std::make_shared<ModelsOptions>();
  CLI::App* command =
      app.add_subcommand("models", "List the models known by name, or describe one");
  command->footer(
      "Examples:\n  meshwright models\n  meshwright models llama-3-8b\n  meshwright models "
      "config.json --graph");
  command->add_option("MODEL", o->model,
                      "A name, config.json, a directory with one, a .onnx or a .graph file");
  command->add_flag("--graph", o->graph, "Print the operator graph as text");
  command->callback([o, &action] { action.run = [o] { return run_models(*o); }; });
}

void add_clusters(CLI::App& app, Action& action) {
  auto o = std::make_shared<ClustersOptions>();
  CLI::App* command =
      app.add_subcommand("clusters", "List cluster shorthands and devices, or describe a cluster");
  command->footer(
      "Examples:\n  meshwright clusters\n  meshwright clusters dgx-h100:8\n  meshwright clusters "
      "lab.yaml\n  meshwright clusters lab.yaml --json");
  CLI::Option* cluster = command->add_option("CLUSTER", o->cluster, "A shorthand or a YAML file");
  command->add_flag("--json", o->json, "Print the cluster spelled out as JSON, for other programs")
      ->needs(cluster);
  command->callback([o, &action] { action.run = [o] { return run_clusters(*o); }; });
}

}  // namespace meshwright::cli
