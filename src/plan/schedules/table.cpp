#include <fmt/format.h>

#include "base/error.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

constexpr const Schedule* kSchedules[] = {
    &kGpipe,
    &kOneForwardOneBackward,
    &kInterleaved,
};

}  // namespace

std::span<const Schedule* const> all_schedules() { return kSchedules; }

const Schedule& find_schedule(std::string_view name) {
  std::string known;
  for (const Schedule* schedule : kSchedules) {
    if (schedule->name == name) return *schedule;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", schedule->name);
  }
  throw Error(fmt::format("unknown schedule '{}'", name), {}, "known: " + known);
}

}  // namespace meshwright
