// ZB-V (Qi et al. 2023, section 6; "Pipeline Parallelism with Controllable Memory", 2024): two
// chunks per stage, placed in a V: chunk c < p on stage c, the others on the way back, so that the
// first and the last chunk share stage 0 and a micro-batch's backward pass starts where its forward
// pass ended. Backward passes are split as in ZB-H1.
// With equal passes no stage waits between its first and its last pass once m >= 2p-1; stage s can
// only start after s forward passes of half a stage, so that a step that all stages end together is
// (p-1)F/2 longer than the work. Activations as under 1F1B on its first stage, the same on every
// stage. Loses when passes are far from equal (then the units of the pattern do not interlock), and
// sends twice as many messages as 1F1B.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  return shape.chunks_per_stage == 2 ? "" : "zb-v has two chunks per stage";
}

int placement(const ScheduleShape& shape, int chunk) {
  return chunk < shape.stages ? chunk : 2 * shape.stages - 1 - chunk;
}

// One stage. The pattern is made for enough micro-batches to fill the pipeline; passes of those
// that do not exist are left out.
std::vector<ScheduleItem> stage_order(const ScheduleShape& shape, int s) {
  const int p = shape.stages;
  const int total = std::max(2 * p - 1, shape.micro_batches);
  std::vector<ScheduleItem> items;
  items.reserve(6 * static_cast<std::size_t>(shape.micro_batches));
  const int chunk[2] = {s, 2 * p - 1 - s};  // Down, up.
  int done[2][3] = {};
  const auto run = [&](Phase phase, int leg) {
    const int m = done[leg][static_cast<int>(phase)]++;
    if (m < shape.micro_batches) items.push_back({phase, chunk[leg], m});
  };
  constexpr Phase F = Phase::kForward;
  constexpr Phase B = Phase::kBackward;
  constexpr Phase W = Phase::kWeight;
  const auto left = [&](Phase phase, int leg) {
    return done[leg][static_cast<int>(phase)] < total;
  };
  // Until the first micro-batch comes back up.
  for (int i = 0; i < 2 * (p - s) - 1; ++i) run(F, 0);
  for (int i = 0; i < s; ++i) run(F, 1), run(F, 0);
  for (int i = 0; i < p - s; ++i) run(F, 1), run(B, 1), run(W, 1);
  // All six passes of a micro-batch in turn.
  while (left(F, 0) || left(F, 1)) {
    if (left(F, 0)) run(F, 0);
    run(B, 0), run(W, 0);
    run(F, 1), run(B, 1), run(W, 1);
  }
  // Backward passes that others wait for come before weights.
  for (int i = 0; i < s; ++i) run(B, 0), run(B, 1);
  for (int i = 0; i < p - s; ++i) run(B, 0), run(W, 0);
  while (left(W, 1)) run(W, 1);
  while (left(W, 0)) run(W, 0);
  return items;
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  std::vector<std::vector<ScheduleItem>> order;
  for (int s = 0; s < shape.stages; ++s) order.push_back(stage_order(shape, s));
  return order;
}

double bubble(const ScheduleShape& shape) { return (shape.stages - 1) / 6.0; }

}  // namespace

const Schedule kZeroBubbleV = {
    .name = "zb-v",
    .summary = "two chunks per stage in a V, backward passes split",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .placement = placement,
    .splits_backward = true,
    .vpp_min = 2,
    .vpp_max = 2,
};

}  // namespace meshwright
