// Every configuration of the reference data gives a graph or an Error that says why.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "import/hf/family.h"
#include "import/import.h"
#include "ir/graph.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;

fs::path configs() { return fs::path(MESHWRIGHT_REFERENCE_DATA) / "real" / "hf_configs"; }

// Module path up to the first numeric component: "model.layers.17"; empty outside of layers.
std::string layer_of(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (std::all_of(name.begin() + begin, name.begin() + end,
                    [](unsigned char c) { return std::isdigit(c) != 0; })) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  return {};
}

// The operators of one layer stand together.
void expect_contiguous_layers(const Graph& graph) {
  std::set<std::string> seen;
  std::string current;
  for (const Op& op : graph.ops) {
    const std::string layer = layer_of(op.name);
    if (layer == current) continue;
    if (!layer.empty()) {
      EXPECT_TRUE(seen.insert(layer).second) << graph.name << ": " << op.name;
    }
    current = layer;
  }
}

struct Outcome {
  std::map<std::string, int> imported;
  std::map<std::string, int> refused;  ///< By the start of the message.
  int imports = 0, refusals = 0;
};

class Walk {
 public:
  void import(const std::string& name, const std::string& text) {
    const auto [it, fresh] = results_.try_emplace(text);
    if (fresh) it->second = read(name, text);
    const auto& [ok, what] = it->second;
    ++(ok ? outcome.imported : outcome.refused)[what];
    ++(ok ? outcome.imports : outcome.refusals);
  }

  void print(std::string_view title) const {
    fmt::print("{}: {} imported, {} refused\n", title, outcome.imports, outcome.refusals);
    for (const auto& [family, count] : outcome.imported) fmt::print("  {:6} {}\n", count, family);
    for (const auto& [reason, count] : outcome.refused)
      fmt::print("  {:6} refused: {}\n", count, reason);
  }

  Outcome outcome;

 private:
  static std::pair<bool, std::string> read(const std::string& name, const std::string& text) {
    try {
      const Model model = import_hf_config(text, name, {});
      EXPECT_GT(parameter_count(model.graph), 0) << name;
      expect_contiguous_layers(model.graph);
      return {true, model.family};
    } catch (const Error& e) {
      EXPECT_TRUE(e.where().starts_with(name)) << e.what();
      EXPECT_FALSE(e.message().empty()) << name;
      std::string reason = e.message().substr(0, 90);
      return {false, reason};
    }
  }

  std::map<std::string, std::pair<bool, std::string>> results_;
};

#define SKIP_WITHOUT_REFERENCE_DATA() \
  if (!fs::exists(configs())) GTEST_SKIP() << "no reference data at " << configs()

TEST(Corpus, EveryFile) {
  SKIP_WITHOUT_REFERENCE_DATA();
  Walk walk;
  for (const auto& entry : fs::recursive_directory_iterator(configs())) {
    if (entry.path().extension() != ".json" || entry.path().parent_path().filename() == "bulk") {
      continue;
    }
    walk.import(entry.path().filename().string(), read_file(entry.path(), 1 << 20));
  }
  walk.print("hf_configs");
  EXPECT_GE(walk.outcome.imports, 55);
}

TEST(Corpus, NoModelFileIsImported) {
  SKIP_WITHOUT_REFERENCE_DATA();
  Walk walk;
  for (std::string_view folder : {"not_model_configs", "llm_analysis_format"}) {
    for (const auto& entry : fs::directory_iterator(configs() / folder)) {
      walk.import(entry.path().filename().string(), read_file(entry.path(), 1 << 20));
    }
  }
  EXPECT_EQ(walk.outcome.imports, 0);
  EXPECT_GT(walk.outcome.refusals, 20);
}

// 2,980 reduced configurations: sizes and class names only.
TEST(Corpus, ReducedConfigurations) {
  SKIP_WITHOUT_REFERENCE_DATA();
  const auto start = std::chrono::steady_clock::now();
  const Json all = read_json(configs() / "bulk" / "gpu_poor_all_configs_2980.json");
  ASSERT_EQ(all.size(), 2980u);
  Walk walk;
  for (const auto& [name, config] : all.items()) walk.import(name, config.dump());
  walk.print("bulk");
  EXPECT_GE(walk.outcome.imports, 2850);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

// Test models of other tools: a model_type and a few sizes, the rest is the library's defaults.
TEST(Corpus, PartialConfigurations) {
  SKIP_WITHOUT_REFERENCE_DATA();
  Walk walk;
  const Json reduced = read_json(configs() / "bulk" / "ktransformers_model_configs.json");
  for (const auto& [name, config] : reduced.items()) walk.import(name, config.dump());
  for (std::string_view file :
       {"quic_causal_model_configs.json", "quic_image_text_model_configs.json"}) {
    const Json lists = read_json(configs() / "bulk" / file);
    for (const auto& [group, models] : lists.items()) {
      for (const Json& entry : models) {
        if (!entry.contains("model_type") || !entry.contains("additional_params")) continue;
        if (!entry["additional_params"].is_object()) continue;
        Json config = entry["additional_params"];
        config["model_type"] = entry["model_type"];
        walk.import(entry.value("model_name", "?"), config.dump());
      }
    }
  }
  walk.print("partial");
  EXPECT_GE(walk.outcome.imports, 60);
}

TEST(Corpus, Llama405bImportsFast) {
  SKIP_WITHOUT_REFERENCE_DATA();
  const std::string text = read_file(configs() / "meta-llama--Meta-Llama-3.1-405B.json", 1 << 20);
  std::chrono::duration<double> best{1e9};
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Model model = import_hf_config(text, "405B", {.global_batch = 2048, .seq = 8192});
    best = std::min<std::chrono::duration<double>>(best, std::chrono::steady_clock::now() - start);
    EXPECT_EQ(parameter_count(model.graph), 405853388800.0);
  }
  fmt::print("llama-3.1-405b: {:.1f} ms\n", 1e3 * best.count());
  EXPECT_LT(best.count(), 0.2);  // 50 ms is the aim; other work may share the machine.
}

TEST(Corpus, EveryFamilyIsDocumented) {
  const std::string page =
      read_file(fs::path(MESHWRIGHT_SOURCE_DIR) / "docs" / "models.md", 1 << 20);
  for (const hf::Family* family : hf::families()) {
    EXPECT_NE(page.find(family->name), std::string::npos) << family->name;
  }
}

}  // namespace
}  // namespace meshwright
