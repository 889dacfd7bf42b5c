// No mutant that changes a number is proved.
#include "verify/mutate.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "models/test_models.h"
#include "verify/test_plans.h"

namespace meshwright {
namespace {

TestModelSizes tiny(bool tied, std::int64_t experts, std::int64_t layers) {
  return {.batch = 8,
          .seq = 4,
          .hidden = 4,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 2,
          .ffn = 4,
          .vocab = 6,
          .layers = layers,
          .experts = experts,
          .tied = tied};
}

struct Case {
  bool tied;
  std::int64_t experts;
  Degrees degrees;
};
const Case kCases[] = {
    {false, 0, {.dp = 2, .micro_batch = 2}},
    {false, 0, {.tp = 2, .sp = true, .micro_batch = 4}},
    {true, 0, {.dp = 2, .tp = 2, .micro_batch = 2, .zero = StateSharding::kZero1}},
    {false, 0, {.dp = 2, .tp = 2, .sp = true, .zero = StateSharding::kZero2}},
    {true, 0, {.dp = 2, .cp = 2, .micro_batch = 2, .zero = StateSharding::kZero3}},
    {true, 0, {.pp = 2, .dp = 2, .tp = 2, .micro_batch = 2}},
    {false, 0, {.pp = 2, .dp = 2, .micro_batch = 2, .recompute = Recompute::kFull}},
    {true, 0, {.pp = 4, .micro_batch = 4, .zero = StateSharding::kNone}},
    {false, 4, {.dp = 2, .ep = 2, .micro_batch = 2}},
    {false, 4, {.dp = 2, .tp = 2, .sp = true, .ep = 2, .etp = 2, .micro_batch = 2}},
    {false,
     0,
     {.cp = 2, .tp = 2, .sp = true, .micro_batch = 4, .recompute = Recompute::kSelective}},
};

TEST(Mutate, NoneThatMattersIsProved) {
  const char* count = std::getenv("MESHWRIGHT_MUTANTS");
  const std::int64_t each = count == nullptr ? 120 : std::atoll(count) / std::ssize(kCases) + 1;
  MutantReport all;
  for (const Case& c : kCases) {
    const TestModelSizes sizes = tiny(c.tied, c.experts, std::max(2, c.degrees.pp));
    const Graph graph = test_model(sizes);
    const auto segments = find_segments(graph);
    const auto plan = test_plan(graph, segments, c.degrees, sizes.batch);
    ASSERT_TRUE(plan) << to_string(c.degrees);
    const Program program = lower(*plan, graph, segments);
    const MutantReport report = judge_mutants(program, *plan, graph, segments, each, 17);
    EXPECT_EQ(report.total().missed, 0) << to_string(c.degrees) << "\n" << to_string(report);
    if (all.kinds.empty()) {
      all = report;
      continue;
    }
    for (std::size_t k = 0; k < all.kinds.size(); ++k) {
      all.kinds[k].made += report.kinds[k].made;
      all.kinds[k].rejected += report.kinds[k].rejected;
      all.kinds[k].equivalent += report.kinds[k].equivalent;
      all.kinds[k].missed += report.kinds[k].missed;
    }
  }
  std::printf("%s", to_string(all).c_str());
  EXPECT_GT(all.total().rejected, all.total().made / 2);
}

}  // namespace
}  // namespace meshwright
