// Plans under every schedule lower to programs that can be proved right.
#include <gmock/gmock.h>

#include "base/error.h"
#include "models/test_models.h"
#include "plan/check.h"
#include "plan/facts.h"
#include "plan/lower.h"
#include "plan/order.h"
#include "plan/schedule.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

struct Model {
  Graph graph;
  std::vector<Segment> segments = find_segments(graph);
  Cluster cluster;

  explicit Model(const TestModelSizes& sizes) : graph(test_model(sizes)) {
    cluster.device_kind.assign(16, 0);
  }
  std::string verdict(const Plan& plan) const {
    for (const Violation& v : check_plan(plan, graph, segments, cluster)) return v.message;
    const Program program = lower(plan, graph, segments);
    const VerifyReport report = verify(program, plan, graph, segments);
    return report.proved() ? "" : to_string(report);
  }
};

TEST(VerifySchedules, DegreesUnderEverySchedule) {
  int proved = 0;
  for (const TestModelSizes& sizes :
       {TestModelSizes{.layers = 8}, TestModelSizes{.layers = 8, .tied = true},
        TestModelSizes{.layers = 8, .experts = 4}}) {
    const Model model(sizes);
    for (const Schedule* schedule : all_schedules()) {
      if (schedule->vpp_max == 0) continue;
      for (int pp : {2, 4}) {
        for (const Degrees& inner : {Degrees{.dp = 2}, Degrees{.tp = 2, .sp = true},
                                     Degrees{.dp = 2, .zero = StateSharding::kZero1},
                                     Degrees{.dp = 2, .zero = StateSharding::kZero3},
                                     Degrees{.cp = 2, .recompute = Recompute::kFull}}) {
          Degrees d = inner;
          d.pp = pp;
          d.vpp = schedule->vpp_min;
          std::vector<int> cuts;
          const int chunks = d.pp * d.vpp;
          for (int c = 1; c < chunks; ++c) {
            cuts.push_back(static_cast<int>(model.segments.size()) * c / chunks);
          }
          const Plan plan = make_plan(model.graph, model.segments, model.cluster, {}, 16, d, cuts,
                                      schedule->name);
          EXPECT_EQ(model.verdict(plan), "") << schedule->name << " " << to_string(d);
          ++proved;
        }
      }
    }
  }
  EXPECT_EQ(proved, 3 * 7 * 2 * 5);
}

// Embedding and output layer over all devices, layers over parts of them.
TEST(VerifySchedules, Interlaced) {
  for (const bool tied : {false, true}) {
    const Model model({.tied = tied});
    Plan plan = make_plan(model.graph, model.segments, model.cluster, {}, 16,
                          {.pp = 2, .tp = 2, .micro_batch = 2}, {3});
    plan.schedule = "interlaced";
    plan.stages.push_back(make_stage({.tp = 4, .micro_batch = 2}, {}, 0));
    plan.chunks = {{2, 0, 1}, {0, 1, 3}, {1, 3, 5}, {2, 5, 6}};
    EXPECT_EQ(model.verdict(plan), "") << tied;
  }
}

// An order of one's own.
TEST(VerifySchedules, RuledOrders) {
  const Model model({});
  Plan plan = make_plan(model.graph, model.segments, model.cluster, {}, 16,
                        {.pp = 4, .dp = 2, .micro_batch = 1}, {2, 3, 4}, "zb-h1");
  op_order(plan, {Phase::kForward, 0, PassSet::kAll}, {Phase::kBackward, 0, PassSet::kAll});
  op_order(plan, {Phase::kWeight, 3, 0}, {Phase::kForward, 3, 1});
  EXPECT_EQ(model.verdict(plan), "");
}

}  // namespace
}  // namespace meshwright
