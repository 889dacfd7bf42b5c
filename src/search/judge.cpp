#include "search/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "plan/lower.h"

namespace meshwright {

Pricer pricer_of(const Problem& problem) {
  Pricer pricer(problem.cluster, find_cost_model(problem.cost_model), problem.engine);
  if (problem.profile) pricer.use_profile(problem.profile, problem.graph);
  return pricer;
}

Bytes usable_memory(const Problem& problem, const Stage& stage) {
  const Cluster& cluster = problem.cluster;
  Bytes smallest = cluster.kinds[0].memory;
  if (!cluster.homogeneous()) {
    AxisList all;
    for (int a = 0; a < static_cast<int>(stage.mesh.axes.size()); ++a) all.push_back(a);
    smallest = Bytes(std::numeric_limits<double>::infinity());
    for (DeviceId device : stage.mesh.group(all))
      smallest = std::min(smallest, cluster.kind(device).memory);
  }
  return smallest * problem.restrictions.max_memory;
}

Judged judge(const Problem& problem, Plan plan, bool keep_events) {
  SegmentLowering lowering(problem.graph, problem.segments, plan.overrides);
  return judge(problem, std::move(plan), lowering, keep_events);
}

Judged judge(const Problem& problem, Plan plan, SegmentLowering& lowering, bool keep_events) {
  Pricer pricer = pricer_of(problem);
  Judged result;
  Program program = lower(plan, lowering, problem.segments);
  pricer.sign(program, plan);
  result.timeline = simulate(program, plan, pricer, keep_events);
  result.coverage = pricer.coverage();
  result.fits = true;
  double fullest = -1;
  // Stage s is lane s's own.
  for (std::size_t s = 0; s < result.timeline.memory.size(); ++s) {
    const double used = result.timeline.memory[s].total() / usable_memory(problem, plan.stages[s]);
    if (used > 1) result.fits = false;
    if (used > fullest) fullest = used, result.fullest_stage = static_cast<int>(s);
  }
  result.plan = std::move(plan);
  return result;
}

std::string why_lost(const Problem& problem, const Judged& loser, const Judged& winner) {
  if (!loser.fits) {
    const MemoryBreakdown& m = loser.timeline.memory[static_cast<std::size_t>(loser.fullest_stage)];
    const Bytes usable =
        usable_memory(problem, loser.plan.stages[static_cast<std::size_t>(loser.fullest_stage)]);
    return fmt::format("does not fit: stage {} needs {} of {}", loser.fullest_stage,
                       format_bytes(m.total()), format_bytes(usable));
  }
  // The parts of the step, averaged over stages: all differences together are the difference in
  // step time.
  const auto parts = [](const Judged& j) {
    std::vector<std::pair<std::string, double>> list;
    const double stages = static_cast<double>(j.timeline.stages.size());
    double compute = 0, bubble = 0, host = 0;
    std::array<double, kPurposeCount> spent{};
    for (const StageTime& s : j.timeline.stages) {
      for (int p = 0; p < kPurposeCount; ++p) {
        const double t = s.spent[static_cast<std::size_t>(p)].value / stages;
        if (p <= static_cast<int>(Purpose::kBackward))
          compute += t;
        else
          spent[static_cast<std::size_t>(p)] += t;
      }
      bubble += s.bubble.value / stages;
      host += s.host.value / stages;
    }
    list.emplace_back("compute", compute);
    list.emplace_back("pipeline bubble", bubble);
    list.emplace_back("host overhead", host);
    for (int p = static_cast<int>(Purpose::kRecompute); p < kPurposeCount; ++p) {
      list.emplace_back(purpose_name(static_cast<Purpose>(p)), spent[static_cast<std::size_t>(p)]);
    }
    return list;
  };
  const auto mine = parts(loser);
  const auto theirs = parts(winner);
  const double difference = loser.step().value - winner.step().value;
  std::vector<std::pair<double, std::string>> worse;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double extra = mine[i].second - theirs[i].second;
    if (extra > 0.2 * std::max(difference, 1e-9)) worse.emplace_back(extra, mine[i].first);
  }
  std::sort(worse.rbegin(), worse.rend());
  if (worse.empty() || difference < 1e-4 * winner.step().value) return "as fast within 0.01 %";
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(worse.size(), 2); ++i) {
    text += fmt::format("{}{} +{}", i == 0 ? "" : ", ", worse[i].second,
                        format_seconds(Seconds(worse[i].first)));
  }
  return text;
}

bool ranks_before(const Problem& problem, const Judged& a, const Judged& b) {
  if (a.fits != b.fits) return a.fits;
  const auto key = [&](const Judged& j) {
    double most = 0;
    for (const MemoryBreakdown& m : j.timeline.memory) most = std::max(most, m.total().value);
    return !j.fits || problem.objective == Objective::kMemory ? most : j.step().value;
  };
  return key(a) < key(b);
}

void rank(const Problem& problem, std::vector<Judged>& judged, int top) {
  std::stable_sort(judged.begin(), judged.end(),
                   [&](const Judged& a, const Judged& b) { return ranks_before(problem, a, b); });
  if (judged.size() > static_cast<std::size_t>(top)) judged.resize(static_cast<std::size_t>(top));
  for (std::size_t i = 1; i < judged.size(); ++i) {
    judged[i].lost_because = why_lost(problem, judged[i], judged[0]);
  }
}

SearchStatus status_of(const std::vector<Judged>& ranking, bool interrupted) {
  if (ranking.empty()) return SearchStatus::kNothingLegal;
  if (!ranking[0].fits) return SearchStatus::kNothingFits;
  return interrupted ? SearchStatus::kInterrupted : SearchStatus::kFound;
}

}  // namespace meshwright
