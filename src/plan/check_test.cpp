#include "plan/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "models/test_models.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

class CheckPlan : public testing::Test {
 protected:
  CheckPlan() {
    cluster_.device_kind.assign(8, 0);
    plan_ =
        make_plan(graph_, segments_, cluster_, {}, 16, {.pp = 2, .dp = 4, .micro_batch = 1}, {3});
  }

  // "P1 message (hint)" of every violation.
  std::string violations() const {
    std::string text;
    for (const Violation& v : check_plan(plan_, graph_, segments_, cluster_)) {
      text += fmt::format("{} {} ({})\n", v.rule, v.message, v.hint);
    }
    return text;
  }

  Graph graph_ = test_model({});
  std::vector<Segment> segments_ = find_segments(graph_);
  Cluster cluster_;
  Plan plan_;
};

TEST_F(CheckPlan, MadePlansAreLegal) { EXPECT_EQ(violations(), ""); }

TEST_F(CheckPlan, ChunksGoRoundTheStages) {
  std::swap(plan_.chunks[0].stage, plan_.chunks[1].stage);
  EXPECT_THAT(violations(), HasSubstr("P29 chunk 0 runs on stage 1, but chunks go round the stages "
                                      "(it runs on stage 0)"));
  plan_.chunks[0].stage = 0;
  plan_.chunks[0].last_segment = plan_.chunks[1].last_segment;
  plan_.chunks.pop_back();
  EXPECT_THAT(violations(), HasSubstr("P29 1 chunks do not go round 2 stages evenly"));
}

TEST_F(CheckPlan, SchedulesRefuse) {
  plan_.schedule = "spiral";
  EXPECT_THAT(violations(), HasSubstr("P30 unknown schedule 'spiral' (known: gpipe, 1f1b"));
  plan_.schedule = "interleaved";
  plan_.micro_batches = 3;
  EXPECT_THAT(violations(), HasSubstr("P30 interleaved needs micro-batches in multiples"));
}

TEST_F(CheckPlan, PassesAreBounded) {
  plan_.micro_batches = std::int64_t{1} << 22;
  EXPECT_THAT(violations(), HasSubstr("P17 4194304 micro-batches of 2 chunks are more than"));
  const ModelFacts facts = model_facts(graph_, segments_);
  const auto broken = check_degrees(facts, 8, std::int64_t{1} << 31, {.dp = 1, .micro_batch = 1});
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_EQ(broken[0].rule, "P17");
  EXPECT_FALSE(degrees_legal(facts, 8, std::int64_t{1} << 31, {.dp = 1, .micro_batch = 1}));
}

}  // namespace
}  // namespace meshwright
