// ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1): 1F1B whose backward pass
// is split into B (gradients of activations, which the stage before waits for) and W (gradients of
// parameters, which nobody waits for). Stage s puts W off by s micro-batches; what it saves while
// the pipeline fills runs where 1F1B would wait at the end.
// Bubble (p-1)(F+B-W) where W <= B, a third of 1F1B's with equal passes. Activations of at most p
// micro-batches on every stage, as on 1F1B's first one, so later stages need more memory than under
// 1F1B. Loses where W is small against B (long sequences: attention has no W), and where splitting
// costs kernels their efficiency.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  return shape.chunks_per_stage == 1 ? "" : "zb-h1 has one chunk per stage; use zb-v";
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(shape.stages));
  for (int s = 0; s < shape.stages; ++s) {
    auto& items = order[static_cast<std::size_t>(s)];
    items.reserve(3 * static_cast<std::size_t>(shape.micro_batches));
    int forward = 0;
    int weight = 0;
    const int warmup = std::min(shape.stages - 1 - s, shape.micro_batches);
    while (forward < warmup) items.push_back({Phase::kForward, s, forward++});
    for (int m = 0; m < shape.micro_batches; ++m) {
      if (forward < shape.micro_batches) items.push_back({Phase::kForward, s, forward++});
      items.push_back({Phase::kBackward, s, m});
      if (weight + s <= m) items.push_back({Phase::kWeight, s, weight++});
    }
    while (weight < shape.micro_batches) items.push_back({Phase::kWeight, s, weight++});
  }
  return order;
}

double bubble(const ScheduleShape& shape) { return (shape.stages - 1) / 3.0; }

}  // namespace

const Schedule kZeroBubbleH1 = {
    .name = "zb-h1",
    .summary = "1F1B with the gradients of parameters put off into the bubble",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .splits_backward = true,
};

}  // namespace meshwright
