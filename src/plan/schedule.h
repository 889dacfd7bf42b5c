#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "plan/program.h"

namespace meshwright {

/// What a schedule is asked for: `chunks_per_stage` chunks on each of `stages` stages; chunk c runs
/// on stage c mod stages.
struct ScheduleShape {
  int stages = 1;
  int chunks_per_stage = 1;
  int micro_batches = 1;
};

/// A generator of op-order. One file each in plan/schedules/, one line each in schedules/table.cpp.
struct Schedule {
  std::string_view name;
  std::string_view summary;
  /// Whether gradients of parameters have passes of their own (zero-bubble schedules).
  bool splits_backward = false;
  /// Why the shape is not possible, or empty.
  std::string_view (*refuses)(const ScheduleShape& shape);
  /// Per stage, what it runs in order. Every (phase, chunk of the stage, micro-batch) exactly once.
  std::vector<std::vector<ScheduleItem>> (*generate)(const ScheduleShape& shape);
};

std::span<const Schedule* const> all_schedules();
/// Throws Error naming the known ones.
const Schedule& find_schedule(std::string_view name);

extern const Schedule kGpipe;
extern const Schedule kOneForwardOneBackward;
extern const Schedule kInterleaved;

}  // namespace meshwright
