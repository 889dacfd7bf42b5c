#include "plan/order.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"
#include "models/test_pipelines.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

// "F0.0 B0.0": passes of a lane, chunk and micro-batch.
std::string passes(const Program& program, std::size_t lane) {
  std::string text;
  for (const ScheduleItem& item : program.lanes[lane].order) {
    if (!is_pass(item.phase)) continue;
    text += fmt::format("{}{}{}.{}", text.empty() ? "" : " ", "FBW"[static_cast<int>(item.phase)],
                        item.chunk, item.micro_batch);
  }
  return text;
}

TEST(OpOrder, ReordersAsLittleAsItTakes) {
  TestPipeline p(kOneForwardOneBackward, {2, 1, 3, {}, {}});
  p.fill();
  EXPECT_EQ(passes(p.program, 0), "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2");
  // All forward passes first: GPipe.
  TestPipeline q(kOneForwardOneBackward, {2, 1, 3, {}, {}});
  op_order(q.plan, {Phase::kForward, 0, PassSet::kAll}, {Phase::kBackward, 0, PassSet::kAll});
  q.fill();
  EXPECT_EQ(passes(q.program, 0), "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2");
  EXPECT_EQ(passes(q.program, 1), passes(p.program, 1));
  // One micro-batch overtakes another on both stages.
  TestPipeline r(kOneForwardOneBackward, {2, 1, 3, {}, {}});
  op_order(r.plan, {Phase::kForward, 0, 2}, {Phase::kForward, 0, 1});
  op_order(r.plan, {Phase::kForward, 1, 2}, {Phase::kForward, 1, 1});
  r.fill();
  EXPECT_THAT(passes(r.program, 0), HasSubstr("F0.2 F0.1"));
  EXPECT_THAT(passes(r.program, 1), HasSubstr("F1.2"));
}

// Rules that a schedule obeys anyhow change nothing.
TEST(OpOrder, KeptRulesChangeNothing) {
  for (const Schedule* schedule : all_schedules()) {
    ScheduleShape shape{4, std::max(schedule->vpp_min, 1), 8, {}, {}};
    if (schedule->takes_everywhere) shape.everywhere = {0};
    TestPipeline plain(*schedule, shape);
    plain.fill();
    TestPipeline ruled(*schedule, shape);
    op_order(ruled.plan, {Phase::kForward, 0, PassSet::kEach},
             {Phase::kBackward, 0, PassSet::kEach});
    ruled.fill();
    for (std::size_t l = 0; l < 4; ++l) {
      EXPECT_EQ(plain.program.lanes[l].order, ruled.program.lanes[l].order) << schedule->name;
    }
  }
}

std::string error(const Schedule& schedule, const ScheduleShape& shape,
                  std::vector<OrderRule> rules) {
  TestPipeline p(schedule, shape);
  p.plan.order = std::move(rules);
  try {
    p.fill();
  } catch (const Error& e) {
    return e.where() + ": " + e.message();
  }
  return "";
}

TEST(OpOrder, CirclesAreErrorsThatShowThem) {
  const PassSet f0{Phase::kForward, 0, 0};
  const PassSet f1{Phase::kForward, 0, 1};
  EXPECT_EQ(error(kGpipe, {2, 1, 4, {}, {}}, {{f0, f1}, {f1, f0}}),
            "order/0: the order has a circle: forward of chunk 0, micro-batch 1, before forward of "
            "chunk 0, micro-batch 0, before forward of chunk 0, micro-batch 1");
  // With what passes need of each other: forward of 1 waits for backward of 1 to end.
  EXPECT_THAT(error(kOneForwardOneBackward, {2, 1, 4, {}, {}},
                    {{{Phase::kBackward, 0, 1}, {Phase::kForward, 0, 1}}}),
              HasSubstr("backward of chunk 0, micro-batch 1, before forward of chunk 0"));
  EXPECT_THAT(error(kOneForwardOneBackward, {2, 1, 4, {}, {}},
                    {{{Phase::kBackward, 0, PassSet::kAll}, {Phase::kForward, 0, PassSet::kAll}}}),
              HasSubstr("order/0: the order has a circle"));
  EXPECT_THAT(
      error(kChimera, {2, 1, 4, {}, {}}, {{{Phase::kForward, 0, 1}, {Phase::kForward, 0, 0}}}),
      HasSubstr("order/0: chunk 0 has no forward pass of micro-batch 1"));
}

// Rules read off a random order of one lane's passes that respects what passes need can be had.
RC_GTEST_PROP(OpOrder, RandomRulesAreObeyedOrRefused, ()) {
  const std::vector<const Schedule*> schedules = {&kGpipe, &kOneForwardOneBackward, &kZeroBubbleH1,
                                                  &kChimera, &kDualPipe};
  const Schedule& schedule = **rc::gen::elementOf(schedules);
  const ScheduleShape shape{2 * *rc::gen::inRange(1, 4), 1, *rc::gen::inRange(1, 10), {}, {}};
  TestPipeline p(schedule, shape);
  const int count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    const int chunk = *rc::gen::inRange(0, shape.stages * schedule.replicas);
    const int phases = schedule.splits_backward ? 3 : 2;
    const auto set = [&] {
      const int m = *rc::gen::inRange(0, shape.micro_batches);
      const int own = m - m % schedule.replicas + chunk / shape.stages;
      return PassSet{static_cast<Phase>(*rc::gen::inRange(0, phases)), chunk,
                     std::min(own, shape.micro_batches - 1)};
    };
    op_order(p.plan, set(), set());
  }
  try {
    p.fill();
  } catch (const Error&) {
    return;
  }
  for (const OrderRule& rule : p.plan.order) {
    for (const Lane& lane : p.program.lanes) {
      const auto at = [&](const PassSet& s) {
        return std::find(lane.order.begin(), lane.order.end(),
                         ScheduleItem{s.phase, s.chunk, s.micro_batch}) -
               lane.order.begin();
      };
      if (at(rule.before) == std::ssize(lane.order)) continue;
      RC_ASSERT(at(rule.before) < at(rule.after));
    }
  }
}

}  // namespace
}  // namespace meshwright
