#include "api/prove.h"

#include <chrono>

#include "plan/lower.h"

namespace meshwright {

Proof prove(const PlanFile& file, std::int64_t mutants, std::uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return Seconds(std::chrono::duration<double>(Clock::now() - start).count());
  };
  const Graph& graph = file.loaded.model.graph;
  const std::vector<Segment>& segments = file.loaded.segments;
  Proof proof;
  auto start = Clock::now();
  const Program program = lower(file.plan, graph, segments);
  proof.lowering = since(start);
  start = Clock::now();
  proof.report = verify(program, file.plan, graph, segments);
  proof.verification = since(start);
  if (mutants > 0 && proof.report.proved()) {
    proof.mutants = judge_mutants(program, file.plan, graph, segments, mutants, seed);
  }
  return proof;
}

}  // namespace meshwright
