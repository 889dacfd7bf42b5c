#include "verify/test_plans.h"

#include "plan/check.h"
#include "plan/facts.h"

namespace meshwright {
namespace {

std::vector<int> even_cuts(std::size_t segments, int parts) {
  std::vector<int> cuts;
  for (int i = 1; i < parts; ++i) {
    cuts.push_back(static_cast<int>(static_cast<std::size_t>(i) * segments) / parts);
  }
  return cuts;
}

}  // namespace

std::optional<Plan> test_plan(const Graph& graph, const std::vector<Segment>& segments,
                              const Degrees& degrees, std::int64_t global_batch) {
  const ModelFacts facts = model_facts(graph, segments);
  if (!check_degrees(facts, degrees.devices(), global_batch, degrees).empty()) return std::nullopt;
  Cluster cluster;
  cluster.device_kind.assign(static_cast<std::size_t>(degrees.devices()), 0);
  Plan plan = make_plan(graph, segments, cluster, {}, global_batch, degrees,
                        even_cuts(segments.size(), degrees.pp * degrees.vpp));
  plan.schedule = degrees.vpp > 1 ? "interleaved" : "1f1b";
  if (!check_plan(plan, graph, segments, cluster).empty()) return std::nullopt;
  return plan;
}

}  // namespace meshwright
