#include <gtest/gtest.h>

#include "base/error.h"
#include "import/import.h"
#include "plan/lower.h"
#include "plan/transform.h"
#include "search/layout_search.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

// The best layout of a model under a schedule of rounds is proved.
void expect_proved(const Graph& graph, std::int64_t batch, const std::string& schedule,
                   std::size_t chunks_per_lane) {
  const auto segments = find_segments(graph);
  const Cluster cluster = read_cluster("dgx-a100:1");
  for (const int devices : {2, 4, 8}) {
    Problem problem{graph, segments, cluster, {}, batch};
    problem.restrictions.schedule = schedule;
    problem.restrictions.devices = devices;
    SearchResult found;
    try {
      found = search_layouts(problem, {});
    } catch (const Error& e) {
      ADD_FAILURE() << schedule << " on " << devices << ": " << e.what();
      continue;
    }
    ASSERT_FALSE(found.ranking.empty());
    for (const Judged& judged : found.ranking) {
      const Plan& plan = judged.plan;
      EXPECT_EQ(plan.schedule, schedule);
      const auto violations = check_plan(plan, graph, segments, cluster);
      EXPECT_TRUE(violations.empty()) << violations[0].rule << " " << violations[0].message;
      const Program program = lower(plan, graph, segments);
      EXPECT_GT(program.lanes.size(), 1u);
      EXPECT_GE(plan.chunks.size(), chunks_per_lane * program.lanes.size());
      const VerifyReport report = verify(program, plan, graph, segments);
      EXPECT_TRUE(report.proved()) << to_string(plan.degrees) << "\n" << to_string(report);
    }
  }
}

Model model(const char* name, std::int64_t seq = 0) {
  ImportOptions options;
  options.global_batch = 16;
  options.seq = seq;
  return import_model(name, options);
}

TEST(RoundModels, RecyclingUnderThreeForwardOneBackward) {
  expect_proved(model("evoformer-tiny").graph, 16, "3f1b", 2);
}

TEST(RoundModels, HugeEmbeddingsInterlaced) {
  expect_proved(model("t5-tiny").graph, 16, "interlaced", 1);
  expect_proved(model("gpt-tiny").graph, 16, "interlaced", 1);
  expect_proved(model("llama-tiny").graph, 16, "interlaced", 1);
}

TEST(RoundModels, TokenSlicesUnderTeraPipe) {
  const Graph sliced =
      apply_transform(model("llama-tiny", 256).graph, {"slice_sequence", "**", "", 4});
  expect_proved(sliced, 16, "terapipe", 4);
}

TEST(RoundModels, OthersAreRefused) {
  const Graph graph = model("llama-tiny").graph;
  const auto segments = find_segments(graph);
  const Cluster cluster = read_cluster("dgx-a100:1");
  Problem problem{graph, segments, cluster, {}, 16};
  problem.restrictions.schedule = "3f1b";
  EXPECT_THROW(search_layouts(problem, {}), Error);
  problem.restrictions.schedule = "terapipe";
  EXPECT_THROW(search_layouts(problem, {}), Error);
}

}  // namespace
}  // namespace meshwright
