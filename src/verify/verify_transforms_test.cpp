// Transformed graphs lower to programs that can be proved right, like any other.
#include <gmock/gmock.h>

#include "models/test_models.h"
#include "plan/transform.h"
#include "verify/test_plans.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

struct Case {
  const char* name;
  TestModelSizes sizes;
  TransformRequest request;
};
const Case kCases[] = {
    {"heads", {}, {"co_shard", "layers.*.attn.**", "heads", 2}},
    {"ffn", {}, {"co_shard", "layers.*.mlp.**", "ffn", 4}},
    {"batch", {}, {"co_shard", "layers.*.**", "batch", 2}},
    {"experts", {.experts = 8}, {"co_shard", "layers.*.mlp.**", "experts", 2}},
    {"tokens", {}, {"slice_sequence", "", "", 2}},
    {"tokens_tied", {.tied = true}, {"slice_sequence", "", "", 4}},
};

TEST(VerifyTransforms, EveryLegalLayoutIsProved) {
  int proved = 0;
  int failed = 0;
  for (const Case& c : kCases) {
    const Graph graph = apply_transform(test_model(c.sizes), c.request);
    const auto segments = find_segments(graph);
    for (int pp : {1, 2})
      for (int dp : {1, 2})
        for (int tp : {1, 2})
          for (bool sp : {false, true})
            for (auto zero : {StateSharding::kNone, StateSharding::kZero3})
              for (auto recompute : {Recompute::kNone, Recompute::kFull}) {
                if (sp && tp == 1) continue;
                const Degrees d{.pp = pp,
                                .dp = dp,
                                .tp = tp,
                                .sp = sp,
                                .micro_batch = 2,
                                .zero = zero,
                                .recompute = recompute};
                const auto plan = test_plan(graph, segments, d, c.sizes.batch);
                if (!plan) continue;
                std::string text;
                try {
                  const Program program = lower(*plan, graph, segments);
                  const VerifyReport report = verify(program, *plan, graph, segments);
                  ++proved;
                  if (!report.proved()) text = to_string(report);
                } catch (const std::exception& e) {
                  text = e.what();
                }
                if (!text.empty() && ++failed < 12) {
                  ADD_FAILURE() << c.name << " " << to_string(d) << "\n" << text;
                }
              }
  }
  EXPECT_EQ(failed, 0);
  EXPECT_GT(proved, 100);
}

}  // namespace
}  // namespace meshwright
