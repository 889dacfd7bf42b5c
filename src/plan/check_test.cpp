#include "plan/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "models/test_models.h"
#include "plan/order.h"

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
  EXPECT_THAT(violations(), HasSubstr("P29 chunk 0 runs on stage 1, where 1f1b does not put it "
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

TEST_F(CheckPlan, ReplicasCoverTheModel) {
  plan_ = make_plan(graph_, segments_, cluster_, {}, 16, {.pp = 2, .dp = 4, .micro_batch = 1}, {3},
                    "chimera");
  EXPECT_EQ(violations(), "");
  ASSERT_EQ(plan_.chunks.size(), 4u);
  EXPECT_EQ(plan_.chunks[2].stage, 1);
  EXPECT_EQ(plan_.chunks[2].replica, 1);
  plan_.chunks[3].last_segment = 5;
  EXPECT_THAT(violations(), HasSubstr("P28 chunks of replica 1 cover 5 of 6 segments"));
  plan_.chunks[3].last_segment = 6;
  plan_.schedule = "1f1b";
  EXPECT_THAT(violations(),
              HasSubstr("P29 chunk 2 belongs to replica 1 of 1 (1f1b has one replica"));
}

TEST_F(CheckPlan, DegreesUnderASchedule) {
  const auto error = [&](const Degrees& d, const char* schedule) {
    std::string text;
    for (const Violation& v : check_degrees(model_facts(graph_, segments_), 8, 24, d, schedule)) {
      text += fmt::format("{} {} ({})", v.rule, v.message, v.hint);
    }
    return text;
  };
  EXPECT_EQ(error({.pp = 2, .vpp = 2, .dp = 4}, "zb-v"), "");
  EXPECT_EQ(error({.pp = 4, .dp = 1}, "dualpipe"), "");
  EXPECT_EQ(error({.pp = 2, .dp = 4}, "zb-v"), "P30 zb-v has two chunks per stage ()");
  EXPECT_EQ(error({.pp = 3, .dp = 2}, "chimera"), "P30 chimera needs an even number of stages ()");
  EXPECT_EQ(error({.pp = 2, .dp = 4}, "interleaved"),
            "P30 interleaved has 2 or more chunks per stage, not 1 ()");
  EXPECT_THAT(error({.pp = 2, .dp = 4}, "3f1b"),
              HasSubstr("3f1b needs more of a plan than degrees say (degrees suit gpipe, 1f1b, "));
}

// A stage over all devices (an embedding) beside stages over parts of them.
TEST_F(CheckPlan, OverlappingStages) {
  plan_.stages.push_back(make_stage({.dp = 8, .micro_batch = 1}, {}, 0));
  plan_.chunks = {{2, 0, 1}, {0, 1, 3}, {1, 3, 6}};
  EXPECT_THAT(violations(), HasSubstr("P30 1f1b has no place for chunks that all devices run"));
  plan_.schedule = "interlaced";
  EXPECT_EQ(violations(), "");
  std::swap(plan_.chunks[1].stage, plan_.chunks[2].stage);
  EXPECT_THAT(violations(), HasSubstr("P29 chunk 1 runs on stage 1, where interlaced does not"));
  plan_.stages[2].mesh.axes[0].size = 4;
  plan_.stages[2].mesh.first_device = 2;
  EXPECT_THAT(violations(),
              HasSubstr("P25 stages 0 and 2 share 2 devices, but the smallest of them"));
}

TEST_F(CheckPlan, RulesOfOrder) {
  op_order(plan_, {Phase::kForward, 0, 3}, {Phase::kBackward, 0, 0});
  EXPECT_EQ(violations(), "");
  const auto one = [&](const PassSet& before, const PassSet& after) {
    plan_.order = {{before, after}};
    return violations();
  };
  plan_.order.assign(2000000, {});
  EXPECT_THAT(violations(),
              HasSubstr("P32 order: 2000000 rules over 4 micro-batches are more than"));
  EXPECT_THAT(one({Phase::kForward, 7, 0}, {}),
              HasSubstr("P32 order/0: there is no chunk 7 among 2"));
  EXPECT_THAT(one({Phase::kWeight, 0, 0}, {}), HasSubstr("P32 order/0: 1f1b has no weight passes"));
  EXPECT_THAT(one({Phase::kSend, 0, 0}, {}), HasSubstr("P32 order/0: orders passes only"));
  EXPECT_THAT(one({Phase::kForward, 0, 4}, {}),
              HasSubstr("P32 order/0: there is no micro-batch 4 among 4"));
  EXPECT_THAT(one({Phase::kForward, 0, PassSet::kEach}, {}),
              HasSubstr("P32 order/0: \"each\" stands for"));
  EXPECT_THAT(one({Phase::kForward, 0, 0}, {Phase::kForward, 1, 0}),
              HasSubstr("P32 order/0: chunks 0 and 1 run on different devices (stages 0 and 1)"));
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
