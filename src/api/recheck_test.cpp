#include "api/recheck.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "search/judge.h"

namespace meshwright {
namespace {

using ::testing::HasSubstr;

/// A plan of llama-tiny on one host, changed as JSON.
PlanFile changed(const std::function<void(Json&)>& change) {
  Request request;
  request.model = "llama-tiny";
  request.cluster = "h100:1x8";
  request.import.global_batch = 16;
  const Loaded loaded = load(request);
  const Degrees degrees{.pp = 2, .dp = 2, .tp = 2, .sp = true, .micro_batch = 2};
  const Plan plan = make_plan(loaded.model.graph, loaded.segments, loaded.cluster, {}, 16, degrees,
                              {static_cast<int>(loaded.segments.size()) / 2});
  Json json = plan_file_to_json(loaded, judge(loaded.problem(), plan));
  change(json);
  const auto path = std::filesystem::path(testing::TempDir()) / "recheck_test_plan.json";
  write_file(path, json.dump(), /*overwrite=*/true);
  return open_plan_file(path.string());
}

std::string rules(const PlanCheck& check) {
  std::string text;
  for (const Violation& v : check.violations) text += v.rule + " " + v.message + "\n";
  return text;
}

TEST(Recheck, AWrittenPlanHolds) {
  const PlanCheck check = recheck(changed([](Json&) {}));
  EXPECT_TRUE(check.ok()) << rules(check);
  ASSERT_TRUE(check.judged);
  EXPECT_TRUE(check.judged->fits);
}

TEST(Recheck, StructureIsCheckedFirst) {
  const PlanCheck check = recheck(changed([](Json& j) { j["stages"][1]["first_device"] = 6; }));
  EXPECT_THAT(rules(check), HasSubstr("P24 stage 1 uses device 9 of 8"));
  EXPECT_FALSE(check.judged);
  EXPECT_THAT(rules(recheck(changed(
                  [](Json& j) { j["stages"][0]["roles"]["context"] = Json::array({"tp"}); }))),
              HasSubstr("P31 stage 0: axis 'tp' has several roles at once"));
}

// Degrees are those of the stages, not what the file says they came from.
TEST(Recheck, StagesCountAndNotDegrees) {
  EXPECT_TRUE(recheck(changed([](Json& j) { j["degrees"]["tp"] = 3; })).ok());
  const PlanCheck check = recheck(changed([](Json& j) { j["micro_batches"] = 16; }));
  EXPECT_THAT(rules(check),
              HasSubstr("P12 stage 0: global batch 16 is not split evenly over 16 micro-batches"));
}

TEST(Recheck, MemoryIsARule) {
  const PlanCheck check = recheck(changed([](Json& j) { j["max_memory"] = 0.001; }));
  EXPECT_THAT(rules(check), HasSubstr("M1 stage 0 needs "));
  EXPECT_THAT(rules(check), HasSubstr("M1 stage 1 needs "));
  EXPECT_TRUE(check.judged);
}

// Image models have the length that their plan files say.
TEST(Recheck, ImageModelsCanBeReadBack) {
  Request request;
  request.model = "vit-tiny";
  request.cluster = "h100:1x1";
  request.import.global_batch = 4;
  const Loaded loaded = load(request);
  const Plan plan =
      make_plan(loaded.model.graph, loaded.segments, loaded.cluster, {}, 4, {.micro_batch = 4}, {});
  const auto path = std::filesystem::path(testing::TempDir()) / "recheck_test_vit.json";
  write_file(path, plan_file_to_json(loaded, judge(loaded.problem(), plan)).dump(), true);
  EXPECT_TRUE(recheck(open_plan_file(path.string())).ok());
}

}  // namespace
}  // namespace meshwright
