#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.h"
#include "cost/memory.h"
#include "cost/price.h"
#include "plan/check.h"
#include "plan/facts.h"
#include "plan/plan.h"
#include "sim/simulate.h"
#include "space/compile_space.h"

namespace meshwright {

enum class Objective { kThroughput, kCost, kMemory };

/// Everything a search is given. The references must outlive it.
struct Problem {
  const Graph& graph;
  const std::vector<Segment>& segments;
  const Cluster& cluster;
  Training training;
  std::int64_t global_batch = 1;
  std::string cost_model = "analytic";
  std::string engine = "default";
  Objective objective = Objective::kThroughput;
  Restrictions restrictions;
  /// What rules about operators allow, besides `restrictions`; null = everything.
  std::shared_ptr<const CompiledSpace> space = nullptr;

  /// What the cost model "profiled" goes by; null otherwise.
  std::shared_ptr<const ProfileTable> profile = nullptr;

  std::shared_ptr<const Overrides> overrides() const { return space ? space->overrides : nullptr; }
};

/// Prices by the problem's cost model.
Pricer pricer_of(const Problem& problem);

/// The plan of a layout with what the problem's space says of its operators.
Plan plan_of(const Problem& problem, const Degrees& degrees, const std::vector<int>& cuts);

/// A layout judged by the shared code: check, lower, simulate.
struct Judged {
  Plan plan;
  Timeline timeline;
  bool fits = false;
  int fullest_stage = 0;
  std::string lost_because;                      ///< Empty for the winner.
  std::optional<ProfileCoverage> coverage = {};  ///< Of a profile, where one was used.

  Seconds step() const { return timeline.step; }
};

enum class SearchStatus { kFound, kNothingFits, kNothingLegal, kInterrupted };

struct SearchResult {
  SearchStatus status = SearchStatus::kNothingLegal;
  std::vector<Judged> ranking;  ///< Best first. When nothing fits: the closest to fitting.
  std::int64_t legal = 0;       ///< Layouts that obey every rule.
  std::int64_t fitting = 0;     ///< Of them, those estimated to fit in memory.
  std::int64_t simulated = 0;
  /// Legal layouts that rules of the space forbid: how many by the first rule that each breaks.
  std::vector<std::pair<std::string, std::int64_t>> forbidden;
  Seconds lower_bound;  ///< No plan of this family is faster: compute alone at full balance.
  double elapsed_seconds = 0;
  std::string note;  ///< Such as "7 of 8 devices are used".
};

struct SearchProgress {
  std::int64_t evaluated = 0;
  std::int64_t total = 0;
  Seconds best;  ///< 0 = none so far.
  std::string best_layout;
};

struct SearchControl {
  int top = 5;                              ///< Judged plans to return.
  double time_limit_seconds = 0;            ///< 0 = none.
  const std::atomic<bool>* stop = nullptr;  ///< Set by Ctrl-C: return the best so far.
  std::function<void(const SearchProgress&)> progress;
};

}  // namespace meshwright
