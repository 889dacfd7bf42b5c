#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/program.h"

namespace meshwright {

/// What a schedule is asked for: the chunks of one model, `chunks_per_stage` on each of `stages`
/// lanes, and besides them those of `everywhere`. A bidirectional schedule numbers the chunks of
/// its second replica after those of the first.
struct ScheduleShape {
  int stages = 1;            ///< Lanes that make the pipeline.
  int chunks_per_stage = 1;  ///< Per replica, without those of `everywhere`.
  int micro_batches = 1;
  std::vector<bool> backward;   ///< Per chunk whether it has a backward pass; empty = all have.
  std::vector<int> everywhere;  ///< Chunks that run on all lanes at once, ascending.

  /// Of one replica.
  int chunks() const { return stages * chunks_per_stage + static_cast<int>(everywhere.size()); }
  bool has_backward(int chunk) const {
    return backward.empty() || backward[static_cast<std::size_t>(chunk)];
  }
};

/// Lane of chunks that run on all of them.
inline constexpr int kEverywhere = -1;

/// A generator of op-order. One file each in plan/schedules/, one line each in schedules/table.cpp.
struct Schedule {
  std::string_view name;
  std::string_view summary;
  /// Why the shape is not possible, or empty.
  std::string_view (*refuses)(const ScheduleShape& shape);
  /// Per lane, what it runs in order: every pass of every chunk of the lane exactly once.
  /// Micro-batch m goes through replica m modulo the number of replicas, and through no other.
  std::vector<std::vector<ScheduleItem>> (*generate)(const ScheduleShape& shape);
  /// What all passes together take beyond one lane's own work, in units of the work of one
  /// micro-batch on a lane (of its own chunks), when forward, backward and weight passes take equal
  /// times (a backward pass that is not split two) and messages none. For shapes that the schedule
  /// is made for; its file says which.
  double (*bubble)(const ScheduleShape& shape);

  /// The lane that runs a chunk; unset: chunks go round the lanes.
  int (*placement)(const ScheduleShape& shape, int chunk) = nullptr;
  /// Copies of the model in the pipeline; 2 = the second one runs against the first.
  int replicas = 1;
  /// Backward passes leave the gradients of parameters to weight passes.
  bool splits_backward = false;
  /// Only the last of several passes over the lanes has a backward pass.
  bool recycles = false;
  /// Every round of chunks is a part of the sequence: what leaves the last lane does not come back
  /// to the first.
  bool slices = false;
  /// Has a place for chunks that all lanes run together.
  bool takes_everywhere = false;
  /// Chunks per stage that a search over degrees may choose for it; 0 = it cannot.
  int vpp_min = 1;
  int vpp_max = 1;

  /// The lane of a chunk of any replica, or kEverywhere.
  int stage_of(const ScheduleShape& shape, int chunk) const;
};

std::span<const Schedule* const> all_schedules();
/// Throws Error naming the known ones.
const Schedule& find_schedule(std::string_view name);
/// The schedule that degrees imply when nobody names one.
std::string_view default_schedule(int chunks_per_stage);
/// "gpipe, 1f1b, …": those that a search over degrees can use.
std::string searchable_schedules();

/// Pairs of chunks (from, to) between which activations flow, when chunks form a chain within each
/// replica (and within each slice).
std::vector<std::pair<int, int>> chain_of(const Schedule& schedule, const ScheduleShape& shape);

extern const Schedule kGpipe;
extern const Schedule kOneForwardOneBackward;
extern const Schedule kInterleaved;
extern const Schedule kZeroBubbleH1;
extern const Schedule kZeroBubbleV;
extern const Schedule kChimera;
extern const Schedule kDualPipe;
extern const Schedule kTeraPipe;
extern const Schedule kThreeForwardOneBackward;
extern const Schedule kInterlaced;

}  // namespace meshwright
