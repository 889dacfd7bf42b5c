// Token-level pipeline (TeraPipe, Li et al. 2021): the sequence is cut into T slices; slice t on
// stage s is chunk t*p + s and needs the keys and values that earlier slices left on the same
// stage. Slices of a micro-batch go forward in order and backward in reverse. The order is 1F1B in
// units of slices (as in Seq1F1B, Sun et al. 2024; TeraPipe itself runs all forward passes first).
// Bubble (p-1)(F+B)/T; T + p - 1 - s slices of activations on stage s. Loses when slices get too
// short for the kernels, and later slices of causal attention cost more than earlier ones, which
// the cut should even out.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape&) { return ""; }

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  const int p = shape.stages;
  const int slices = shape.chunks_per_stage;
  const int total = shape.micro_batches * slices;
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(p));
  for (int s = 0; s < p; ++s) {
    auto& items = order[static_cast<std::size_t>(s)];
    items.reserve(2 * static_cast<std::size_t>(total));
    const auto forward = [&](int k) {
      items.push_back({Phase::kForward, k % slices * p + s, k / slices});
    };
    const auto backward = [&](int k) {
      items.push_back({Phase::kBackward, (slices - 1 - k % slices) * p + s, k / slices});
    };
    const int warmup = std::min(slices - 1 + p - 1 - s, total);
    for (int k = 0; k < warmup; ++k) forward(k);
    for (int k = warmup; k < total; ++k) forward(k), backward(k - warmup);
    for (int k = total - warmup; k < total; ++k) backward(k);
  }
  return order;
}

double bubble(const ScheduleShape& shape) { return (shape.stages - 1.0) / shape.chunks_per_stage; }

}  // namespace

const Schedule kTeraPipe = {
    .name = "terapipe",
    .summary = "slices of the sequence in turn, backward in reverse",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .slices = true,
    .vpp_min = 0,
    .vpp_max = 0,
};

}  // namespace meshwright
