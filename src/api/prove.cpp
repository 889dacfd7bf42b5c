#include "api/prove.h"

#include <fmt/format.h>

#include <chrono>

#include "base/format.h"
#include "plan/lower.h"
#include "search/judge.h"

namespace meshwright {

namespace {

void check_memory(const Program& program, const PlanFile& file, Proof& proof) {
  const Problem problem = file.loaded.problem();
  Pricer pricer = pricer_of(problem);
  const std::vector<MemoryBreakdown> lanes = program_memory(program, file.plan, pricer);
  double fullest = -1;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const Stage& stage = file.plan.stages[static_cast<std::size_t>(program.lanes[l].stages[0])];
    const Bytes usable = usable_memory(problem, stage);
    const double share = lanes[l].total() / usable;
    if (share <= fullest) continue;
    fullest = share;
    proof.memory = lanes[l].total();
    proof.usable = usable;
    proof.fullest_lane = static_cast<int>(l);
  }
  if (fullest <= 1 || proof.report.failure) return;
  CounterExample example;
  example.check = "memory";
  example.message = fmt::format("stage {} needs {} of {} that it may use", proof.fullest_lane,
                                format_bytes(proof.memory), format_bytes(proof.usable));
  example.rank = program.lanes[static_cast<std::size_t>(proof.fullest_lane)].mesh.first_device;
  proof.report.failure = std::move(example);
}

}  // namespace

Proof prove(const PlanFile& file, std::int64_t mutants, std::uint64_t seed,
            const std::atomic<bool>* stop) {
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
  check_memory(program, file, proof);
  if (mutants > 0 && proof.report.proved()) {
    proof.mutants = judge_mutants(program, file.plan, graph, segments, mutants, seed, stop);
  }
  return proof;
}

}  // namespace meshwright
