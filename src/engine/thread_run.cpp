#include "engine/thread_run.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "engine/reference.h"
#include "engine/thread_comm.h"

namespace meshwright {
namespace {

double relative(double a, double b) {
  return a == b ? 0 : std::abs(a - b) / std::max(std::abs(b), 1e-300);
}

void raise(double& most, double value) {
  if (is_worse(value, most)) most = value;
}

}  // namespace

RunDifference run_threads(const Program& program, const Plan& plan, const Graph& graph,
                          const std::vector<Segment>& segments, int steps,
                          const ExecutorSettings& settings) {
  const int ranks = rank_count(plan);
  const Feeds feeds(graph, settings.seed, plan.global_batch);
  Reference reference(graph, plan.training, plan.global_batch, plan.micro_batches, feeds, settings);
  std::vector<StepResult> expected;
  for (int i = 0; i < steps; ++i) expected.push_back(reference.step(i));

  RunDifference difference;
  difference.losses.resize(static_cast<std::size_t>(steps));
  difference.bytes_sent.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  run_rank_threads(ranks, [&](Comm& comm) {
    Executor executor(program, plan, graph, segments, comm, feeds, settings);
    for (int i = 0; i < steps; ++i) {
      const StepResult got = executor.step(i);
      const auto n = static_cast<std::size_t>(i);
      const std::lock_guard lock(mutex);
      raise(difference.loss, relative(got.loss, expected[n].loss));
      raise(difference.loss, relative(got.gradient_norm, expected[n].gradient_norm));
      difference.losses[n] = got.loss;
    }
    const std::lock_guard lock(mutex);
    difference.bytes_sent[static_cast<std::size_t>(comm.rank())] = executor.bytes_sent();
    const auto compare = [&](ValueId value, const at::Tensor& part, const LocalBuffer& region) {
      const at::Tensor& whole = reference.parameters().at(value.value).master;
      const double d = relative_difference(part, region, whole);
      if (!is_worse(d, difference.parameters)) return;
      difference.parameters = d;
      difference.worst = graph.value(value).name;
    };
    for (const HeldState& s : executor.states()) compare(s.value, s.state->master, s.region);
    // What is held at rest is rounded where it is narrower than the optimizer's copy.
    if (settings.numerics.compute != settings.numerics.precise) return;
    for (const Executor::HeldParameter& held : executor.parameters()) {
      compare(held.value, held.data, held.region);
    }
  });
  return difference;
}

}  // namespace meshwright
