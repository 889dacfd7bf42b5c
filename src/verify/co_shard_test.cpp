#include <gtest/gtest.h>

#include "models/test_models.h"
#include "plan/lower.h"
#include "plan/transform.h"
#include "verify/evaluate.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

// Parts of a region run in turn, and again one by one before their backward passes.
TEST(CoShard, PartsAreRecomputedOneByOne) {
  const Graph whole = test_model({.seq = 16, .heads = 8, .kv_heads = 4, .ffn = 64, .vocab = 64});
  for (const auto& [match, factor, parts] :
       {std::tuple{"**.attn.**", "heads", 4}, {"**.mlp.**", "ffn", 8}, {"**.mlp.**", "ffn", 2}}) {
    const Graph graph = apply_transform(whole, {"co_shard", match, factor, parts});
    const auto segments = find_segments(graph);
    const Cluster cluster = read_cluster("dgx-h100:1");
    for (const Degrees& d :
         {Degrees{}, Degrees{.dp = 2, .zero = StateSharding::kZero3}, Degrees{.dp = 2, .tp = 2},
          Degrees{.tp = 2, .sp = true}, Degrees{.pp = 2, .tp = 2, .sp = true}}) {
      std::vector<int> cuts;
      if (d.pp == 2) cuts = {3};
      Plan plan = make_plan(graph, segments, cluster, {}, 16, d, cuts);
      Bytes saved[2], peak[2];
      for (const Recompute mode : {Recompute::kNone, Recompute::kParts}) {
        for (Stage& stage : plan.stages) stage.recompute = mode;
        const Program program = lower(plan, graph, segments);
        const VerifyReport report = verify(program, plan, graph, segments);
        EXPECT_TRUE(report.proved()) << factor << parts << " " << to_string(d) << "\n"
                                     << to_string(report);
        const auto i = static_cast<std::size_t>(mode == Recompute::kParts);
        for (const SegmentProgram& s : program.segments) {
          saved[i] += s.saved;
          peak[i] = std::max(peak[i], s.backward_peak);
        }
      }
      EXPECT_LT(saved[1], saved[0]) << factor << parts << " " << to_string(d);
      EXPECT_GT(peak[1], Bytes(0));
    }
  }
}

TEST(CoShard, ComputesTheSameNumbers) {
  const Graph whole = test_model({.batch = 4,
                                  .seq = 4,
                                  .hidden = 4,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 2,
                                  .ffn = 8,
                                  .vocab = 8,
                                  .layers = 1});
  for (const auto& [match, factor] : {std::pair{"**.attn.**", "heads"}, {"**.mlp.**", "ffn"}}) {
    const Graph graph = apply_transform(whole, {"co_shard", match, factor, 2});
    const auto segments = find_segments(graph);
    Plan plan = make_plan(graph, segments, read_cluster("dgx-h100:1"), {}, 4,
                          {.dp = 2, .tp = 2, .sp = true}, {});
    plan.stages[0].recompute = Recompute::kParts;
    const Program program = lower(plan, graph, segments);
    EXPECT_EQ(Evaluator(plan, graph, segments, 7).difference(program), "");
  }
}

}  // namespace
}  // namespace meshwright
