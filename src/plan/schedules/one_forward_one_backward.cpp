// 1F1B (PipeDream-Flush, Narayanan et al. 2021): stage s of p warms up with p-1-s forward passes,
// then alternates one forward and one backward pass. Bubble (p-1)/(m+p-1), as GPipe; at most p-s
// micro-batches of activations on stage s. Loses to interleaved 1F1B when the bubble matters and
// layers can be cut finer.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  return shape.chunks_per_stage == 1 ? "" : "1f1b has one chunk per stage; use interleaved";
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(shape.stages));
  for (int s = 0; s < shape.stages; ++s) {
    auto& items = order[static_cast<std::size_t>(s)];
    items.reserve(2 * static_cast<std::size_t>(shape.micro_batches));
    const int warmup = std::min(shape.stages - 1 - s, shape.micro_batches);
    int forward = 0;
    int backward = 0;
    while (forward < warmup) items.push_back({Phase::kForward, s, forward++});
    while (forward < shape.micro_batches) {
      items.push_back({Phase::kForward, s, forward++});
      items.push_back({Phase::kBackward, s, backward++});
    }
    while (backward < shape.micro_batches) items.push_back({Phase::kBackward, s, backward++});
  }
  return order;
}

double bubble(const ScheduleShape& shape) { return shape.stages - 1; }

}  // namespace

const Schedule kOneForwardOneBackward = {
    .name = "1f1b",
    .summary = "one forward, one backward in steady state",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
};

}  // namespace meshwright
