#include <gtest/gtest.h>

#include "models/test_models.h"
#include "plan/check.h"
#include "plan/lower.h"
#include "verify/evaluate.h"
#include "verify/mutate.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

// nnScaler's interlaced pipeline: the embedding and the head lie over all devices, layers on a part
// of them each.
Plan interlaced(const std::vector<Segment>& segments, int stages, int tp, std::int64_t batch,
                std::int64_t micro_batches) {
  Plan plan;
  plan.global_batch = batch;
  plan.micro_batches = micro_batches;
  plan.schedule = "interlaced";
  for (int s = 0; s < stages; ++s) {
    Stage stage;
    stage.mesh.first_device = s * tp;
    if (tp > 1) {
      stage.mesh.axes = {{"tp", tp, 1}};
      stage.roles.tensor = {0};
    }
    plan.stages.push_back(stage);
  }
  Stage all;
  if (tp > 1) all.mesh.axes.push_back({"tp0", tp, 1});
  all.mesh.axes.push_back({tp > 1 ? "tp1" : "tp", stages, tp});
  for (int a = static_cast<int>(all.mesh.axes.size()); a-- > 0;) all.roles.tensor.push_back(a);
  plan.stages.push_back(all);
  const int last = static_cast<int>(segments.size()) - 1;
  plan.chunks.push_back({stages, 0, 1, 0});
  for (int s = 0; s < stages; ++s) {
    plan.chunks.push_back({s, 1 + (last - 1) * s / stages, 1 + (last - 1) * (s + 1) / stages, 0});
  }
  plan.chunks.push_back({stages, last, last + 1, 0});
  return plan;
}

TEST(Interlaced, EmbeddingOverAllDevicesLayersOverParts) {
  for (const bool tied : {false, true}) {
    const Graph graph = test_model({.tied = tied});
    const auto segments = find_segments(graph);
    const Cluster cluster = read_cluster("dgx-h100:1");
    for (const auto& [stages, tp] : {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}}) {
      const Plan plan = interlaced(segments, stages, tp, 16, 4);
      for (const Violation& v : check_plan(plan, graph, segments, cluster))
        ADD_FAILURE() << v.rule << " " << v.message;
      const Program program = lower(plan, graph, segments);
      EXPECT_EQ(program.lanes.size(), static_cast<std::size_t>(stages));
      const VerifyReport report = verify(program, plan, graph, segments);
      EXPECT_TRUE(report.proved()) << to_string(report);
      // The vocabulary is cut over every device.
      for (const SegmentProgram& s : program.segments) {
        for (const ParameterShard& p : s.parameters) {
          if (graph.value(p.value).name == "embed.weight") {
            EXPECT_EQ(p.elements, 64 * ((1000 + stages * tp - 1) / (stages * tp)));
          }
        }
      }
    }
  }
}

// Lanes of stages that share devices, run with numbers.
TEST(Interlaced, ComputesTheSameNumbersAndRejectsMutants) {
  const Graph graph = test_model({.batch = 8,
                                  .seq = 4,
                                  .hidden = 4,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 2,
                                  .ffn = 4,
                                  .vocab = 7,
                                  .layers = 2,
                                  .tied = true});
  const auto segments = find_segments(graph);
  const Plan plan = interlaced(segments, 2, 2, 8, 4);
  const Program program = lower(plan, graph, segments);
  EXPECT_EQ(Evaluator(plan, graph, segments, 3).difference(program), "");
  const MutantReport report = judge_mutants(program, plan, graph, segments, 400, 3);
  EXPECT_EQ(report.total().missed, 0) << to_string(report);
  EXPECT_GT(report.total().rejected, 300);
}

}  // namespace
}  // namespace meshwright
