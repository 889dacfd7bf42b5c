#include "search/layout_estimate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "search/judge.h"
#include "search/pipeline_cut.h"

namespace meshwright {
namespace {

// Micro-batches in flight on chunk `position` of stage s, as the schedules' order has them.
std::vector<double> chunk_flight(int pp, int vpp, std::int64_t micro_batches) {
  std::vector<double> flight(static_cast<std::size_t>(pp * vpp));
  for (int s = 0; s < pp; ++s) {
    const double m = static_cast<double>(micro_batches);
    if (vpp == 1) {
      flight[static_cast<std::size_t>(s)] = std::min<double>(pp - s, m);
      continue;
    }
    // Warm-up passes of the interleaved schedule, spread over the chunks in order, groups of pp at
    // a time.
    double left = std::min<double>((pp - 1 - s) * 2 + (vpp - 1) * pp + 1, m * vpp);
    std::vector<double> per_chunk(static_cast<std::size_t>(vpp), 0);
    for (int v = 0; left > 0; v = (v + 1) % vpp) {
      const double take = std::min<double>(left, pp);
      per_chunk[static_cast<std::size_t>(v)] += take;
      left -= take;
    }
    for (int v = 0; v < vpp; ++v) {
      flight[static_cast<std::size_t>(v * pp + s)] = per_chunk[static_cast<std::size_t>(v)];
    }
  }
  return flight;
}

// Over how many devices the state is sharded.
double state_group(const Degrees& d) {
  if (d.zero == StateSharding::kNone) return 1;
  return d.zero_group == 0 ? static_cast<double>(d.dp) * d.cp : d.zero_group;
}

// ZeRO-1 changes nothing inside the passes: costs are shared with the unsharded layout, only the
// optimizer state is divided.
bool sharded_at_the_step(const Degrees& d, const Stage& stage) {
  return stage.state == StateSharding::kNone && d.zero == StateSharding::kZero1;
}

}  // namespace

LayoutEstimator::LayoutEstimator(const Problem& problem)
    : problem_(problem),
      facts_(model_facts(problem.graph, problem.segments)),
      pricer_(problem.cluster, find_cost_model(problem.cost_model), problem.engine),
      costs_(problem, facts_, pricer_),
      class_count_(static_cast<std::size_t>(shape_class_count(problem.segments)), 0) {
  for (const Segment& s : problem.segments) ++class_count_[static_cast<std::size_t>(s.shape_class)];
}

double LayoutEstimator::fixed_memory(const ClassCost& c, const Degrees& d,
                                     const Stage& stage) const {
  if (!sharded_at_the_step(d, stage)) return c.fixed_memory;
  double elements = 0;
  for (const ParameterShard& p : c.program.parameters) elements += p.elements;
  return c.fixed_memory - elements * problem_.training.optimizer_bytes() * (1 - 1 / state_group(d));
}

// What no cut can beat: compute and memory spread perfectly over the stages, one micro-batch in
// flight.
Estimate LayoutEstimator::bound(const Degrees& d) {
  const LayoutCosts& costs = costs_.costs(d);
  double time = 0;
  double memory = 0;
  double transient = 0;
  for (std::size_t k = 0; k < costs.classes.size(); ++k) {
    const ClassCost& c = costs.classes[k];
    time += class_count_[k] * c.time.value;
    memory += class_count_[k] * (fixed_memory(c, d, costs.stage) + c.saved);
    transient = std::max(transient, c.transient);
  }
  // A tied embedding may be held once.
  if (d.pp == 1) memory -= costs.classes.back().fixed_memory;
  const double m = static_cast<double>(problem_.global_batch / (d.dp * d.micro_batch));
  const Efficiency& e = pricer_.efficiency(costs.stage.mesh);
  Estimate result;
  result.degrees = d;
  result.seconds = m * time / d.pp;
  result.overflow =
      memory / d.pp + transient + e.context.value - usable_memory(problem_, costs.stage).value;
  return result;
}

Estimate LayoutEstimator::estimate(const Degrees& d, bool balance) {
  const LayoutCosts& costs = costs_.costs(d);
  const std::vector<Segment>& segments = problem_.segments;
  const std::size_t n = segments.size();
  const std::int64_t m = problem_.global_batch / (d.dp * d.micro_batch);
  Estimate result;
  result.degrees = d;

  const Stage& stage = costs.stage;
  const Efficiency& e = pricer_.efficiency(stage.mesh);
  const double usable = usable_memory(problem_, stage).value;

  const bool dp_free = sharded_at_the_step(d, stage);
  const double dp_group = state_group(d);
  const int chunks = d.pp * d.vpp;
  const std::vector<double> flight = chunk_flight(d.pp, d.vpp, m);
  double transient = 0;
  for (const ClassCost& c : costs.classes) transient = std::max(transient, c.transient);
  CutInstance cut;
  cut.time.reserve(n);
  std::vector<double> class_fixed;
  for (const ClassCost& c : costs.classes) class_fixed.push_back(fixed_memory(c, d, stage));
  for (std::size_t i = 0; i < n; ++i) {
    const auto k = static_cast<std::size_t>(segments[i].shape_class);
    cut.time.push_back(costs.classes[k].time.value);
    cut.fixed_memory.push_back(class_fixed[k]);
    cut.saved.push_back(costs.classes[k].saved);
  }
  const double reserve = e.context.value + transient;
  if (chunks == 1) {
    double tied = 0;
    std::map<std::int32_t, int> shared;
    for (const ClassCost& c : costs.classes) {
      for (const ParameterShard& p : c.program.parameters) {
        if (p.shared && shared[p.value.value]++ > 0) {
          tied += p.elements *
                  (problem_.training.parameter_bytes() + problem_.training.gradient_bytes() +
                   problem_.training.optimizer_bytes() / dp_group);
        }
      }
    }
    double memory = reserve - (stage.state == StateSharding::kZero3 ? 0 : tied);
    for (std::size_t i = 0; i < n; ++i) memory += cut.fixed_memory[i] + cut.saved[i];
    result.overflow = memory - usable;
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      // Chunks end after layers; what stands before the first layer or after the last stays with
      // it.
      cut.may_end.push_back(static_cast<char>(segments[i].is_layer && i + 1 < n));
    }
    cut.flight = flight;
    cut.capacity.assign(static_cast<std::size_t>(chunks), (usable - reserve) / d.vpp);
    Cut found = cut_chain(cut);
    if (!found.feasible) {
      // The best cut in time shows by how much memory is missing.
      cut.capacity.assign(static_cast<std::size_t>(chunks),
                          std::numeric_limits<double>::infinity());
      found = cut_chain(cut);
      if (!found.feasible) {
        result.overflow = std::numeric_limits<double>::infinity();
        return result;
      }
      std::vector<double> held(static_cast<std::size_t>(d.pp), reserve);
      int begin = 0;
      for (int c = 0; c < chunks; ++c) {
        const int end =
            c + 1 < chunks ? found.first[static_cast<std::size_t>(c)] : static_cast<int>(n);
        for (int i = begin; i < end; ++i) {
          const auto s = static_cast<std::size_t>(i);
          held[static_cast<std::size_t>(c % d.pp)] +=
              cut.fixed_memory[s] + cut.saved[s] * flight[static_cast<std::size_t>(c)];
        }
        begin = end;
      }
      // With virtual stages the split of memory between a stage's chunks was only a guess.
      result.overflow = *std::max_element(held.begin(), held.end()) - usable;
    } else {
      result.overflow = -1;
    }
    if (balance && d.vpp > 1) {
      balance_stages(cut, d.pp, static_cast<double>(m), found);
    }
    result.cuts = std::move(found.first);
  }

  // Step time. Stage times from the cut:
  std::vector<double> stage_time(static_cast<std::size_t>(d.pp), 0);
  std::vector<std::map<int, int>> held(static_cast<std::size_t>(d.pp));
  double slowest_chunk = 0;
  double transfer = 0;
  int begin = 0;
  const int offset = d.pp_inside_dp ? d.tp * d.cp : d.tp * d.cp * d.dp;
  for (int c = 0; c < chunks; ++c) {
    const int end = c + 1 < chunks ? result.cuts[static_cast<std::size_t>(c)] : static_cast<int>(n);
    double time = 2 * e.micro_batch_fixed.value;
    for (int i = begin; i < end; ++i) {
      time += cut.time[static_cast<std::size_t>(i)];
      ++held[static_cast<std::size_t>(c % d.pp)][segments[static_cast<std::size_t>(i)].shape_class];
    }
    stage_time[static_cast<std::size_t>(c % d.pp)] += time;
    slowest_chunk = std::max(slowest_chunk, time);
    if (c + 1 < chunks && d.pp > 1) {
      const Bytes bytes =
          costs.boundary[static_cast<std::size_t>(costs_.lowering().boundary_class(end - 1))];
      transfer = std::max(transfer, pricer_.peer(bytes, stage.mesh, offset).value);
    }
    begin = end;
  }
  const double slowest = *std::max_element(stage_time.begin(), stage_time.end());
  const double md = static_cast<double>(m);
  double seconds = md * slowest;
  seconds += (d.pp - 1) * (slowest_chunk + 2 * transfer);

  Stage full =
      dp_free || d.zero == StateSharding::kNone ? make_stage(d, facts_.all_kv_heads, 0) : stage;
  // The first and the last stage sum the gradients of a parameter that both hold.
  double tie = 0;
  std::set<std::int32_t> held_first;
  for (const auto& [k, count] : held[0]) {
    for (const ParameterShard& p : costs.classes[static_cast<std::size_t>(k)].program.parameters) {
      if (p.shared) held_first.insert(p.value.value);
    }
  }
  for (const auto& [k, count] : held[static_cast<std::size_t>(d.pp) - 1]) {
    if (d.pp == 1) break;
    for (const ParameterShard& p : costs.classes[static_cast<std::size_t>(k)].program.parameters) {
      if (!p.shared || held_first.erase(p.value.value) == 0) continue;
      const Bytes bytes(p.elements * problem_.training.gradient_bytes());
      tie += pricer_.peer(bytes, full.mesh, offset * (d.pp - 1)).value;
    }
  }
  double step = 0;
  for (const std::size_t s : {std::size_t{0}, static_cast<std::size_t>(d.pp) - 1}) {
    std::vector<HeldSegment> list;
    for (const auto& [k, count] : held[s]) {
      list.push_back({&costs.classes[static_cast<std::size_t>(k)].program, count});
    }
    const StepTime t = step_time(lower_step(full, problem_.training, list), full.mesh, pricer_);
    const double backward = stage_time[s] * 2 / 3;
    const double forward = stage_time[s] / 3;
    step =
        std::max(step, t.optimizer.value + t.reduce.value -
                           std::min(t.reduce.value * e.gradient_overlap, backward) +
                           t.gather.value - std::min(t.gather.value * e.gradient_overlap, forward));
    if (d.pp == 1) break;
  }
  result.seconds = seconds + step + tie + e.step_fixed.value;
  return result;
}

}  // namespace meshwright
