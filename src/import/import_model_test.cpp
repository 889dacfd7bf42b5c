#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "import/import.h"
#include "ops/check_ops.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string error_of(std::string_view model, const ImportOptions& options = {}) {
  try {
    import_model(model, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// A fresh directory that goes away with the test.
class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "import_model_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  std::string str() const { return path_.string(); }

  std::string write(std::string_view name, std::string_view content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }

 private:
  fs::path path_;
};

constexpr std::string_view kBert =
    R"({"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 32})";

// "layers.17.attn" -> "layers.17"; empty outside layers.
std::string layer_of(std::string_view name) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return std::string(name.substr(0, end));
    }
    begin = end + 1;
  }
  return {};
}

// What the planner relies on: operators of a layer stand together, nothing is left unused.
void check_conventions(const Graph& graph) {
  std::set<std::string> seen;
  std::string current;
  std::set<std::int32_t> used;
  for (const Op& op : graph.ops) {
    const std::string layer = layer_of(op.name);
    if (layer != current && !layer.empty()) {
      EXPECT_TRUE(seen.insert(layer).second) << graph.name << ": " << layer << " is torn apart";
    }
    current = layer;
    for (ValueId id : op.inputs) used.insert(id.value);
  }
  EXPECT_FALSE(seen.empty()) << graph.name;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.kind == ValueKind::kActivation) continue;
    EXPECT_TRUE(used.contains(static_cast<std::int32_t>(i))) << value.name << " is never read";
  }
}

TEST(NamedModels, EveryOneHasTheParametersItStates) {
  ImportOptions options;
  options.global_batch = 8;
  EXPECT_GE(named_models().size(), 100u);
  std::set<std::string_view> names;
  for (const NamedModel& named : named_models()) {
    EXPECT_TRUE(names.insert(named.name).second) << named.name;
    EXPECT_FALSE(named.summary.empty()) << named.name;
    const Model model = import_model(named.name, options);
    EXPECT_EQ(parameter_count(model.graph), named.parameters) << named.name;
    EXPECT_EQ(model.global_batch, 8) << named.name;
    EXPECT_GT(model.seq, 1) << named.name;
    check_ops(model.graph);
    check_conventions(model.graph);
  }
}

TEST(NamedModels, HoldTheModelsPeoplePlan) {
  for (std::string_view name : {"llama-2-7b",
                                "llama-2-13b",
                                "llama-2-70b",
                                "llama-3-8b",
                                "llama-3-70b",
                                "llama-3.1-405b",
                                "mistral-7b",
                                "mixtral-8x7b",
                                "mixtral-8x22b",
                                "qwen2-7b",
                                "qwen2-72b",
                                "qwen3-0.6b",
                                "qwen3-8b",
                                "qwen3-30b-a3b",
                                "qwen3-235b-a22b",
                                "deepseek-v2",
                                "deepseek-v3",
                                "deepseek-v2-lite",
                                "gpt2",
                                "gpt2-medium",
                                "gpt2-large",
                                "gpt2-xl",
                                "gpt3-175b",
                                "megatron-gpt-22b",
                                "gpt-neox-20b",
                                "gpt-j-6b",
                                "falcon-7b",
                                "falcon-40b",
                                "falcon-180b",
                                "bloom-176b",
                                "opt-66b",
                                "opt-175b",
                                "phi-3-mini",
                                "gemma-2b",
                                "gemma-7b",
                                "gemma-2-9b",
                                "gemma-2-27b",
                                "gpt-oss-20b",
                                "gpt-oss-120b",
                                "t5-base",
                                "t5-large",
                                "t5-3b",
                                "t5-11b",
                                "bart-large",
                                "bert-base",
                                "bert-large",
                                "roberta-base",
                                "vit-base",
                                "vit-large",
                                "swin-base",
                                "clip-vit-b32",
                                "gpt-tiny",
                                "llama-tiny",
                                "moe-tiny",
                                "t5-tiny",
                                "swin-nnscaler-4",
                                "t5-nnscaler-32",
                                "mbart-nnscaler-8",
                                "evoformer-48"}) {
    const auto named = named_models();
    EXPECT_TRUE(std::ranges::any_of(named, [&](const NamedModel& m) { return m.name == name; }))
        << name;
  }
}

TEST(ImportModel, ByName) {
  const Model model = import_model("Llama-3-8B", {});
  EXPECT_EQ(model.family, "llama");
  EXPECT_EQ(parameter_count(model.graph), 8'030'261'248);
  EXPECT_EQ(model.seq, 4096);  // Positions go to 8192; the default is at most 4096.
  EXPECT_EQ(import_model("gpt2", {}).seq, 1024);
  EXPECT_EQ(import_model("t5-base", {}).seq, 512);
}

TEST(ImportModel, UnknownNameNamesTheNearest) {
  EXPECT_THAT(error_of("lama-3-70b"),
              HasSubstr("unknown model \"lama-3-70b\" (did you mean llama-3-70b, "));
  EXPECT_THAT(error_of("qwen3-30b"), HasSubstr("qwen3-30b-a3b"));
  EXPECT_THAT(error_of(""), HasSubstr("no model is given"));
  EXPECT_THAT(error_of(std::string(100'000, 'x')), HasSubstr("unknown model"));
  EXPECT_THAT(error_of(std::string("\0\x01\xff", 3)), HasSubstr("unknown model"));
}

TEST(ImportModel, FromFilesAndDirectories) {
  const TempDir dir;
  const std::string config = dir.write("config.json", kBert);
  EXPECT_EQ(import_model(config, {}).family, "bert");
  EXPECT_EQ(import_model(dir.str(), {}).family, "bert");
  EXPECT_EQ(import_model(dir.str() + "/", {}).family, "bert");
  EXPECT_EQ(import_model(dir.write("odd_name", kBert), {}).family, "bert");
}

TEST(ImportModel, FromGraphText) {
  const TempDir dir;
  ImportOptions options;
  options.global_batch = 4;
  options.seq = 16;
  const Model model = import_model("gpt-tiny", options);
  const std::string path = dir.write("gpt.graph", print_graph(model.graph));
  const Model again = import_model(path, {});
  EXPECT_EQ(again.family, "graph");
  EXPECT_EQ(again.global_batch, 4);
  EXPECT_EQ(again.seq, 16);
  EXPECT_EQ(print_graph(again.graph), print_graph(model.graph));
  options.global_batch = 8;
  EXPECT_EQ(print_graph(import_model(path, options).graph),
            print_graph(import_model("gpt-tiny", options).graph));
  options.seq = 32;
  EXPECT_THAT(error_of(path, options),
              HasSubstr("the graph is written for sequences of 16 and cannot have 32"));
  EXPECT_THAT(error_of(dir.write("bad.graph", "linear ->")), HasSubstr("bad.graph:1"));
}

TEST(ImportModel, FilesThatAreNoModel) {
  const TempDir dir;
  EXPECT_THAT(error_of(dir / "none.json"), HasSubstr("none.json: no such file"));
  EXPECT_THAT(error_of("none.graph"), HasSubstr("none.graph: no such file"));
  EXPECT_THAT(error_of(dir.str()), HasSubstr("the directory has no config.json"));
  EXPECT_THAT(error_of(dir.write("empty.json", "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(dir.write("list.json", "[1, 2]")), HasSubstr("a list of 2"));
  EXPECT_THAT(error_of(dir.write("other.json", R"({"epochs": 3})")),
              HasSubstr("this is not a model configuration"));
  EXPECT_THAT(error_of(dir.write("new.json", R"({"model_type": "hyena"})")),
              HasSubstr("model_type 'hyena' is not supported"));
  EXPECT_THAT(error_of(dir.write("deep.json", std::string(100'000, '['))), HasSubstr("200 levels"));
  std::string garbage;
  for (int i = 0; i < 4096; ++i) garbage += static_cast<char>((i * 7919) >> 3);
  EXPECT_THAT(error_of(dir.write("garbage.json", garbage)), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(dir.write("garbage.graph", garbage)), HasSubstr("garbage.graph:1"));
  const std::string huge = dir.write("huge.json", "{");
  fs::resize_file(huge, 2ull << 30);  // Sparse.
  EXPECT_THAT(error_of(huge), HasSubstr("file is 2.0 GiB, more than the limit of 64.0 MiB"));
  fs::create_directory(dir / "nested");
  fs::create_directory(dir / "nested/config.json");
  EXPECT_THAT(error_of(dir / "nested"), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace meshwright
