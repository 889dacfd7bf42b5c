#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.h"
#include "cost/memory.h"
#include "plan/check.h"
#include "plan/facts.h"
#include "plan/plan.h"
#include "sim/simulate.h"

namespace meshwright {

/// Values that the user allows for one degree. Empty lists allow everything between min and max.
struct Allowed {
  std::int64_t min = 1;
  std::int64_t max = std::int64_t{1} << 40;

  bool contains(std::int64_t v) const { return v >= min && v <= max; }
  bool pinned() const { return min == max; }
};

/// What the user pins or forbids.
struct Restrictions {
  Allowed pp, vpp, dp, tp, cp, ep, etp, micro_batch;
  std::optional<bool> sp;               ///< Sequence parallel; unset = on whenever tp > 1.
  std::vector<StateSharding> state;     ///< Empty = all.
  std::vector<Recompute> recompute;     ///< Empty = all.
  std::optional<std::string> schedule;  ///< One that degrees suit; unset = what vpp implies.
  double max_memory = 0.94;             ///< Share of device memory that may be used.
  int devices = 0;                      ///< Devices to use; 0 = all of the cluster.
};

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
};

/// A layout judged by the shared code: check, lower, simulate.
struct Judged {
  Plan plan;
  Timeline timeline;
  bool fits = false;
  int fullest_stage = 0;
  std::string lost_because;  ///< Empty for the winner.

  Seconds step() const { return timeline.step; }
};

enum class SearchStatus { kFound, kNothingFits, kNothingLegal, kInterrupted };

struct SearchResult {
  SearchStatus status = SearchStatus::kNothingLegal;
  std::vector<Judged> ranking;  ///< Best first. When nothing fits: the closest to fitting.
  std::int64_t legal = 0;       ///< Layouts that obey every rule.
  std::int64_t fitting = 0;     ///< Of them, those estimated to fit in memory.
  std::int64_t simulated = 0;
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
