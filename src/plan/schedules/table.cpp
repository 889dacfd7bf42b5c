#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

constexpr const Schedule* kSchedules[] = {
    &kGpipe,
    &kOneForwardOneBackward,
    &kInterleaved,
    &kZeroBubbleH1,
    &kZeroBubbleV,
    &kChimera,
    &kDualPipe,
    &kTeraPipe,
    &kThreeForwardOneBackward,
    &kInterlaced,
};

}  // namespace

int Schedule::stage_of(const ScheduleShape& shape, int chunk) const {
  return placement != nullptr ? placement(shape, chunk) : chunk % shape.stages;
}

std::span<const Schedule* const> all_schedules() { return kSchedules; }

const Schedule& find_schedule(std::string_view name) {
  for (const Schedule* schedule : kSchedules) {
    if (schedule->name == name) return *schedule;
  }
  std::string known;
  for (const Schedule* schedule : kSchedules) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", schedule->name);
  }
  throw Error(fmt::format("unknown schedule '{}'", name), {}, "known: " + known);
}

std::string_view default_schedule(int chunks_per_stage) {
  return chunks_per_stage > 1 ? kInterleaved.name : kOneForwardOneBackward.name;
}

std::string searchable_schedules() {
  std::string names;
  for (const Schedule* schedule : kSchedules) {
    if (schedule->vpp_max == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", schedule->name);
  }
  return names;
}

std::vector<std::pair<int, int>> chain_of(const Schedule& schedule, const ScheduleShape& shape) {
  std::vector<std::pair<int, int>> pairs;
  for (int r = 0; r < schedule.replicas; ++r) {
    for (int c = 0; c + 1 < shape.chunks(); ++c) {
      if (schedule.slices && (c + 1) % shape.stages == 0) continue;
      pairs.emplace_back(r * shape.chunks() + c, r * shape.chunks() + c + 1);
    }
  }
  return pairs;
}

}  // namespace meshwright
