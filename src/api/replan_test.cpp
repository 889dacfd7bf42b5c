#include "api/replan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "plan/lanes.h"
#include "search/layout_search.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

std::string plan_for(const std::string& cluster, std::int64_t batch) {
  Request r;
  r.model = "llama-tiny";
  r.import.seq = 16;
  r.import.global_batch = batch;
  r.cluster = cluster;
  r.training.optimizer = "sgd";
  const Loaded loaded = load(r);
  SearchControl control;
  control.top = 1;
  const SearchResult found = search_layouts(loaded.problem(), control);
  const std::string path = testing::TempDir() + "/replan.json";
  write_file(path, plan_file_to_json(loaded, found.ranking.at(0)).dump(), true);
  return path;
}

TEST(Replan, UsesWhatIsLeft) {
  const std::string directory = testing::TempDir();
  std::string plan = plan_for("a100-80:2x2", 12);
  // 12 samples are shared by three, then by two, then done by one.
  for (int left = 3; left >= 1; --left) {
    const Replan r = plan_without(plan, left, directory, "after-" + std::to_string(left));
    EXPECT_EQ(r.path, directory + "after-" + std::to_string(left) + ".json");
    const PlanFile file = read_plan_file(r.path);
    EXPECT_EQ(file.loaded.cluster.device_count(), left);
    EXPECT_EQ(file.plan.training.optimizer, "sgd");
    EXPECT_EQ(file.plan.global_batch, 12);
    int devices = 0;
    for (const Lane& lane : lanes_of(file.plan)) devices += lane.mesh.device_count();
    EXPECT_EQ(devices, left) << r.summary;
    plan = r.path;
  }
  try {
    plan_without(plan, 0, directory, "none");
    ADD_FAILURE() << "one device less than one";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("only one device"));
    EXPECT_THAT(e.what(), HasSubstr("--restart-plan"));
  }
}

}  // namespace
}  // namespace meshwright
