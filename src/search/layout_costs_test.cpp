#include "search/layout_costs.h"

#include <gtest/gtest.h>

#include "models/test_models.h"
#include "plan/check.h"

namespace meshwright {
namespace {

// One engine prices what the search chooses by and what the program runs: for every layout the
// table's sums over the segments of a stage are the cost of its instructions, one by one, without
// overlap.
TEST(LayoutCosts, TableSumsAreProgramCosts) {
  for (const std::int64_t experts : {0, 8}) {
    const Graph graph = test_model({.experts = experts});
    const auto segments = find_segments(graph);
    const Cluster cluster = read_cluster("dgx-h100:2");
    const Problem problem{graph, segments, cluster, {}, 16};
    const ModelFacts facts = model_facts(graph, segments);
    Pricer pricer(cluster, find_cost_model("analytic"), "default");
    LayoutCostTable table(problem, facts, pricer);
    int layouts = 0;
    for (Degrees d : {Degrees{.dp = 4, .micro_batch = 2},
                      Degrees{.pp = 2, .dp = 2, .tp = 2, .sp = true, .micro_batch = 2},
                      Degrees{.pp = 2, .dp = 4, .tp = 1, .zero = StateSharding::kZero1},
                      Degrees{.dp = 8, .zero = StateSharding::kZero3},
                      Degrees{.dp = 2, .cp = 2, .tp = 2, .recompute = Recompute::kFull},
                      Degrees{.pp = 2, .vpp = 2, .dp = 2, .recompute = Recompute::kSelective},
                      Degrees{.dp = 4, .tp = 2, .ep = 4, .micro_batch = 2}}) {
      if (!check_degrees(facts, cluster.device_count(), 16, d).empty()) continue;
      ++layouts;
      std::vector<int> cuts;
      for (int c = 1; c < d.pp * d.vpp; ++c) cuts.push_back(c);
      const Plan plan = make_plan(graph, segments, cluster, {}, 16, d, cuts);
      const Program program = lower(plan, graph, segments);
      const LayoutCosts& costs = table.costs(d);
      for (const ChunkProgram& chunk : program.chunks) {
        Seconds priced[2], summed[2];
        const Mesh& mesh = plan.stages[static_cast<std::size_t>(chunk.stage)].mesh;
        for (std::size_t i = 0; i < chunk.segments.size(); ++i) {
          const SegmentProgram& p = program.segments[static_cast<std::size_t>(chunk.segments[i])];
          const auto shape_class = static_cast<std::size_t>(
              segments[static_cast<std::size_t>(chunk.first_segment) + i].shape_class);
          for (const int pass : {0, 1}) {
            // No launch bound and no hidden ring: the plain sum of every instruction.
            for (const Instr& instr : pass == 0 ? p.forward : p.backward) {
              priced[pass] += pricer.price(instr, mesh) *
                              (instr.regather ? 1 - pricer.efficiency(mesh).keeps_gathered : 1);
            }
            summed[pass] += costs.classes[shape_class].without_overlap[pass];
          }
        }
        for (const int pass : {0, 1}) {
          EXPECT_NEAR(priced[pass].value, summed[pass].value, 1e-12 * priced[pass].value)
              << to_string(d);
          EXPECT_GT(priced[pass].value, 0);
        }
      }
    }
    EXPECT_GE(layouts, experts > 0 ? 5 : 6);
  }
}

}  // namespace
}  // namespace meshwright
