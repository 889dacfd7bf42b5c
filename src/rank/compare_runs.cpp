#include "rank/compare_runs.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>

#include "engine/collectives.h"
#include "engine/reference.h"
#include "rank/state_io.h"

namespace meshwright {
namespace {

constexpr int kTag = 7;

}  // namespace

Comparison compare_runs(Comm& comm, Executor& executor, const Plan& plan, const Graph& graph,
                        const Feeds& feeds, const ExecutorSettings& settings,
                        CheckpointReader* resumed, std::int64_t first,
                        const std::vector<double>& losses,
                        const std::function<void(std::int64_t)>& tell) {
  Comparison c;
  c.steps = static_cast<std::int64_t>(losses.size());
  std::map<std::int32_t, at::Tensor> whole;
  if (comm.rank() == 0) {
    Reference reference(graph, plan.training, plan.global_batch, plan.micro_batches, feeds,
                        settings);
    if (resumed != nullptr) read_state(*resumed, reference, graph);
    for (std::int64_t i = 0; i < c.steps; ++i) {
      tell(first + i);
      const double want = reference.step(first + i).loss;
      const double got = losses[static_cast<std::size_t>(i)];
      const double d = want == got ? 0 : std::abs(want - got) / std::abs(want);
      if (is_worse(d, c.loss)) c.loss = d;
    }
    for (const auto& [id, state] : reference.parameters()) whole[id] = state.master;
  }
  std::map<std::int32_t, std::vector<std::pair<LocalBuffer, at::Tensor>>> parts;
  for (const HeldState& s : executor.states()) {
    parts[s.value.value].emplace_back(s.region, s.state->master);
  }
  const bool rounded = settings.numerics.compute != settings.numerics.precise;
  for (const Executor::HeldParameter& p : executor.parameters()) {
    if (!rounded) parts[p.value.value].emplace_back(p.region, p.data);
  }
  std::int32_t worst = -1;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ValueKind::kParameter) continue;
    const auto id = static_cast<std::int32_t>(v);
    at::Tensor value;
    if (comm.rank() == 0) {
      value = whole.at(id).contiguous();
      std::vector<std::unique_ptr<Pending>> pending;
      for (int r = 1; r < comm.size(); ++r) pending.push_back(comm.send(value, r, kTag));
      for (const auto& p : pending) p->wait();
    } else {
      std::vector<std::int64_t> shape;
      for (const Dim& d : graph.values[v].type.dims) shape.push_back(d.size);
      value = at::empty(
          shape, at::TensorOptions(settings.numerics.device).dtype(settings.numerics.precise));
      comm.receive(value, 0, kTag)->wait();
    }
    for (const auto& [region, data] : parts[id]) {
      const double d = relative_difference(data, region, value);
      if (!is_worse(d, c.parameters)) continue;
      c.parameters = d;
      worst = id;
    }
  }
  double most = -1;
  const std::vector<double> mine = {c.parameters, static_cast<double>(worst), c.loss};
  const auto numbers = numbers_of_all(comm, mine);
  for (const std::vector<double>& theirs : numbers) {
    if (!is_worse(theirs[0], most)) continue;
    most = theirs[0];
    worst = static_cast<std::int32_t>(theirs[1]);
  }
  c.parameters = most;
  c.loss = numbers[0][2];
  if (worst >= 0) c.worst = graph.value(ValueId(worst)).name;
  return c;
}

std::string to_string(const Comparison& c, double tolerance) {
  std::string text =
      fmt::format("against one device after {} steps: loss differs by {:.1e}, parameters by {:.1e}",
                  c.steps, c.loss, c.parameters);
  if (!c.worst.empty() && c.parameters > 0) text += fmt::format(" ({})", c.worst);
  return text +
         fmt::format(" relative: {} {:.0e}\n", c.within(tolerance) ? "within" : "ABOVE", tolerance);
}

}  // namespace meshwright
