// Every named plan space on small models of six families and 2, 4 and 8 ranks: what the search
// ranks first is run, one thread per rank, and compared with the model on one device (float64).
// What a space refuses, api/named_spaces_test.cpp lists.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "api/request.h"
#include "base/error.h"
#include "engine/thread_run.h"
#include "plan/lower.h"
#include "search/layout_search.h"
#include "space/plan_space.h"

namespace meshwright {
namespace {

constexpr double kTolerance = 1e-12;
struct TestModel {
  const char* name;
  std::int64_t seq;  ///< 0 = its own.
};
constexpr TestModel kModels[] = {{"gpt-tiny", 16}, {"llama-tiny", 16}, {"moe-tiny", 16},
                                 {"t5-tiny", 16},  {"swin", 0},        {"evoformer-tiny", 0}};

// A Swin of two stages on images of 28 x 28: windows of 7 x 7 patches of 2 x 2, shifted in every
// second block.
constexpr const char* kSwin =
    R"({"model_type": "swin", "architectures": ["SwinForImageClassification"], "image_size": 28,
        "patch_size": 2, "num_channels": 3, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 7, "mlp_ratio": 2.0, "qkv_bias": true, "hidden_act": "gelu",
        "num_labels": 10, "use_absolute_embeddings": false})";

std::string model_path(const TestModel& model) {
  if (std::string_view(model.name) != "swin") return model.name;
  const std::string path = testing::TempDir() + "/swin-of-two-stages.json";
  std::ofstream(path) << kSwin;
  return path;
}

class SpacesEquality : public testing::TestWithParam<std::string> {};

TEST_P(SpacesEquality, EveryModel) {
  int run = 0;
  for (const TestModel& model : kModels) {
    for (int devices : {2, 4, 8}) {
      Request r;
      r.model = model_path(model);
      r.import.seq = model.seq;
      r.import.global_batch = 8;
      r.cluster = devices < 4 ? fmt::format("a100-80:1x{}", devices)
                              : fmt::format("a100-80:2x{}", devices / 2);
      r.space = GetParam();
      SearchControl control;
      control.top = 1;
      std::vector<Judged> ranking;
      std::optional<Loaded> loaded;
      try {
        loaded = load(r);
        ranking = search_layouts(loaded->problem(), control).ranking;
      } catch (const Error&) {
        continue;  // The space does not fit the model.
      }
      if (ranking.empty()) continue;
      Plan plan = ranking[0].plan;
      plan.training.optimizer = "sgd";
      const Graph& graph = loaded->model.graph;
      const Program program = lower(plan, graph, loaded->segments);
      ExecutorSettings settings;
      settings.optimizer.learning_rate = 0.1;
      settings.clip_norm = 0.5;
      const std::string name =
          fmt::format("{} on {}: {}", model.name, devices, to_string(plan.degrees));
      try {
        const RunDifference d = run_threads(program, plan, graph, loaded->segments, 3, settings);
        EXPECT_LE(d.loss, kTolerance) << name;
        EXPECT_LE(d.parameters, kTolerance) << name << " " << d.worst;
        if (std::getenv("MW_PRINT") != nullptr) {
          fmt::print("{} loss {:.1e} parameters {:.1e}\n", name, d.loss, d.parameters);
        }
        ++run;
      } catch (const std::exception& e) {
        ADD_FAILURE() << name << ": " << e.what();
      }
    }
  }
  EXPECT_GT(run, 0);
}

std::vector<std::string> space_names() {
  std::vector<std::string> names;
  for (const auto& space : named_spaces()) names.emplace_back(space.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Named, SpacesEquality, testing::ValuesIn(space_names()),
                         [](const auto& given) {
                           std::string name = given.param;
                           for (char& c : name) {
                             if (c == '-' || c == '.') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace meshwright
