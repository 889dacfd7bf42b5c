// Search over degrees for schedules of rounds (token slices, recycling, interlaced pipelines).
//
// Idea: their step time has no closed formula, but there are few layouts, so every legal one is
// made and judged. Complexity: layouts * (lowering + simulation), milliseconds each. Loses on
// thousands of devices, where the estimates of layout_search.cpp would prune.
#include "search/round_search.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "base/error.h"
#include "plan/check.h"
#include "search/judge.h"
#include "search/round_plan.h"

namespace meshwright {
namespace {

std::vector<Degrees> layouts(const Problem& problem, const ModelFacts& facts, int devices) {
  const Restrictions& r = problem.restrictions;
  std::vector<Degrees> list;
  // Chunks follow from the rounds; experts are not shared out, nor state by host.
  if (!r.vpp.contains(1) || !r.ep.contains(1) || !r.etp.contains(1) || r.hybrid == true)
    return list;
  for (std::int64_t tp : divisors(devices)) {
    if (!r.tp.contains(tp)) continue;
    for (std::int64_t pp : divisors(devices / tp)) {
      if (!r.pp.contains(pp) || (pp == 1 && !r.pp.pinned())) continue;
      for (std::int64_t cp : divisors(devices / (tp * pp))) {
        if (!r.cp.contains(cp) || (cp > 1 && r.cp.contains(1))) continue;
        const std::int64_t dp = devices / (tp * pp * cp);
        if (!r.dp.contains(dp) || problem.global_batch % dp != 0) continue;
        Degrees d;
        d.tp = static_cast<int>(tp);
        d.pp = static_cast<int>(pp);
        d.cp = static_cast<int>(cp);
        d.dp = static_cast<int>(dp);
        d.sp = tp > 1 && r.sp.value_or(true);
        const auto states = !r.state.empty() ? r.state
                            : dp * cp == 1
                                ? std::vector{StateSharding::kNone}
                                : std::vector{StateSharding::kZero1, StateSharding::kZero3};
        const auto recomputes =
            r.recompute.empty() ? std::vector{Recompute::kNone, Recompute::kFull} : r.recompute;
        for (std::int64_t mbs : divisors(problem.global_batch / dp)) {
          if (!r.micro_batch.contains(mbs) || (mbs > 16 && !r.micro_batch.pinned())) continue;
          d.micro_batch = mbs;
          for (StateSharding state : states) {
            d.zero = state;
            for (Recompute recompute : recomputes) {
              d.recompute = recompute;
              if (degrees_legal(facts, problem.cluster.device_count(), problem.global_batch, d,
                                "1f1b"))
                list.push_back(d);
            }
          }
        }
      }
    }
  }
  return list;
}

// The rule that says of a segment that it may not run where the plan has it; empty = none.
std::string_view broken_pin(const Problem& problem, const Plan& plan) {
  if (!problem.space) return {};
  for (const SegmentPin& pin : problem.space->pins) {
    for (const Chunk& chunk : plan.chunks) {
      const auto inside =
          std::lower_bound(pin.segments.begin(), pin.segments.end(), chunk.first_segment);
      if (inside == pin.segments.end() || *inside >= chunk.last_segment) continue;
      const Mesh& mesh = plan.stages[static_cast<std::size_t>(chunk.stage)].mesh;
      if (takes_in(pin.placement, chunk.stage, plan.degrees.pp, mesh, plan.degrees.devices()) ==
          pin.forbidden) {
        return pin.author;
      }
    }
  }
  return {};
}

}  // namespace

SearchResult search_rounds(const Problem& problem, const SearchControl& control) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const std::string schedule = problem.restrictions.schedule.value_or("");
  const ModelFacts facts = model_facts(problem.graph, problem.segments);
  const int devices = problem.restrictions.devices == 0 ? problem.cluster.device_count()
                                                        : problem.restrictions.devices;
  SearchResult result;
  const std::vector<Degrees> list = layouts(problem, facts, devices);
  std::optional<Error> refused;
  bool interrupted = false;
  double best = 0;
  std::string best_layout;
  SegmentLowering lowering(problem.graph, problem.segments);
  std::map<std::string, std::int64_t> forbidden;
  for (const Degrees& d : list) {
    const bool late = control.time_limit_seconds > 0 && elapsed() > control.time_limit_seconds;
    if (late || (control.stop != nullptr && control.stop->load())) {
      interrupted = true;
      break;
    }
    Plan plan;
    try {
      plan = make_round_plan(problem.graph, problem.segments, problem.cluster, problem.training,
                             problem.global_batch, d, schedule);
      if (problem.space) {
        plan.order = orders_of(problem.space->order, plan, problem.graph, problem.segments);
      }
    } catch (const Error& e) {
      if (!refused) refused = e;
      continue;
    }
    if (const std::string_view rule = broken_pin(problem, plan); !rule.empty()) {
      ++forbidden[std::string(rule)];
      continue;
    }
    Judged judged;
    try {
      judged = judge(problem, std::move(plan), lowering);
    } catch (const Error& e) {
      // Orders may contradict what the schedule's passes need of each other.
      if (!refused) refused = e;
      continue;
    }
    ++result.legal;
    ++result.simulated;
    result.fitting += judged.fits;
    if (judged.fits && (best == 0 || judged.step().value < best)) {
      best = judged.step().value;
      best_layout = to_string(d);
    }
    result.ranking.push_back(std::move(judged));
    if (control.progress) {
      control.progress(
          {result.simulated, static_cast<std::int64_t>(list.size()), Seconds(best), best_layout});
    }
  }
  result.forbidden.assign(forbidden.begin(), forbidden.end());
  if (result.ranking.empty() && forbidden.empty() && refused) throw *refused;
  rank(problem, result.ranking, control.top);
  result.elapsed_seconds = elapsed();
  result.status = status_of(result.ranking, interrupted);
  return result;
}

}  // namespace meshwright
