#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace meshwright {

/// The degrees of a plan whose stages are all laid out alike, read off its stages and chunks. This
/// is what engines with one global layout (Megatron-LM, torchtitan) can be told.
struct PlanGrid {
  std::int64_t pp = 1, vpp = 1, dp = 1, cp = 1, tp = 1, ep = 1, etp = 1;
  bool sequence_parallel = false;
  std::int64_t micro_batch = 1;  ///< Sequences.
  Recompute recompute = Recompute::kNone;
  StateSharding state = StateSharding::kNone;
  /// Devices that share one copy of the dense state and of an expert's, by state sharding.
  std::int64_t state_group = 1, expert_state_group = 1;

  std::int64_t stage_ranks() const { return dp * cp * tp; }
  std::int64_t ranks() const { return pp * stage_ranks(); }
  std::int64_t expert_dp() const { return stage_ranks() / (ep * etp); }
};

/// The grid, or what about the plan no grid can say, one sentence each.
struct GridReading {
  PlanGrid grid;
  std::vector<std::string> faults;
};
GridReading read_grid(const Plan& plan);

/// Coordinates of a rank. Ranks count tp fastest, then cp, then dp and pp, or pp and dp.
struct RankPlace {
  std::int64_t pp = 0, dp = 0, cp = 0, tp = 0;
  std::int64_t ep = 0, etp = 0;
};
enum class RankOrder { kDpBeforePp, kPpBeforeDp };
RankPlace place_of(const PlanGrid& grid, std::int64_t rank, RankOrder order);

/// The device that the plan gives to every rank of its grid (`read_grid` without faults).
std::vector<DeviceId> rank_devices(const Plan& plan, const PlanGrid& grid, RankOrder order);

}  // namespace meshwright
