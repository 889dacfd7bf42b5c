// Every named plan space on small models of six families and 2, 4 and 8 ranks: what the search
// ranks first is run, one thread per rank, and compared with the model on one device (float64).
// What a space refuses, api/named_spaces_test.cpp lists.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/request.h"
#include "base/error.h"
#include "engine/thread_run.h"
#include "plan/lower.h"
#include "search/layout_search.h"
#include "space/plan_space.h"

namespace meshwright {
namespace {

constexpr double kTolerance = 1e-12;
constexpr const char* kModels[] = {"gpt-tiny", "llama-tiny", "moe-tiny",
                                   "t5-tiny",  "swin-tiny",  "evoformer-tiny"};

class SpacesEquality : public testing::TestWithParam<std::string> {};

TEST_P(SpacesEquality, EveryModel) {
  int run = 0;
  for (const char* model : kModels) {
    for (int devices : {2, 4, 8}) {
      Request r;
      r.model = model;
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
      const std::string name = fmt::format("{} on {}: {}", model, devices, to_string(plan.degrees));
      try {
        const RunDifference d = run_threads(program, plan, graph, loaded->segments, 3, settings);
        EXPECT_LE(d.loss, kTolerance) << name;
        EXPECT_LE(d.parameters, kTolerance) << name << " " << d.worst;
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
