// GPipe (Huang et al. 2019): every stage runs all forward passes, then all backward passes.
// Bubble (p-1)/(m+p-1) of the step; memory: all m micro-batches of activations on every stage.
// Loses to 1F1B in memory whenever m > p, never wins in time; useful as a baseline and when m <= p.
#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  return shape.chunks_per_stage == 1 ? "" : "gpipe has one chunk per stage";
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(shape.stages));
  for (int s = 0; s < shape.stages; ++s) {
    auto& items = order[static_cast<std::size_t>(s)];
    items.reserve(2 * static_cast<std::size_t>(shape.micro_batches));
    for (int m = 0; m < shape.micro_batches; ++m) items.push_back({Phase::kForward, s, m});
    for (int m = 0; m < shape.micro_batches; ++m) items.push_back({Phase::kBackward, s, m});
  }
  return order;
}

double bubble(const ScheduleShape& shape) { return shape.stages - 1; }

}  // namespace

const Schedule kGpipe = {
    .name = "gpipe",
    .summary = "all forward passes, then all backward passes",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
};

}  // namespace meshwright
