// Chimera (Li & Hoefler 2021): two replicas of the model share the devices, the second one's stages
// in opposite order. Each takes half of the micro-batches, so that a device waits for one direction
// while it works for the other. Runs of p micro-batches follow one another (direct concatenation).
// In slots of one pass, micro-batch k of a direction has its forward pass on its stage s at slot
// s + 2k and its backward pass at 2p - 1 - s + 2k; the other direction's slots are those of odd
// parity, and p micro-batches fill 2p slots without overlap.
// Bubble (p-2)(B + (m/p - 1)(B - F)) when m is a multiple of p: p-2 slots when F = B, in place of
// 1F1B's 2(p-1), and (2p-4)F for m = p with B = 2F (section 3.1, table 2). Activations of p/2 + 1
// to p micro-batches; parameters twice, and their gradients are summed over both replicas. Needs p
// even. Loses to 1F1B where m is much larger than p and B larger than F, since every run of p then
// leaves gaps (the paper's forward doubling and backward halving are not here).
#include <algorithm>
#include <cstdint>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  if (shape.chunks_per_stage != 1) return "chimera has one chunk per stage and direction";
  if (shape.stages % 2 != 0) return "chimera needs an even number of stages";
  if (shape.micro_batches < 2) return "chimera needs two micro-batches, one per direction";
  return "";
}

int placement(const ScheduleShape& shape, int chunk) {
  return chunk < shape.stages ? chunk : 2 * shape.stages - 1 - chunk;
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  const int p = shape.stages;
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(p));
  std::vector<std::pair<std::int64_t, ScheduleItem>> timed;
  for (int device = 0; device < p; ++device) {
    timed.clear();
    for (int m = 0; m < shape.micro_batches; ++m) {
      const int direction = m % 2;
      const int k = m / 2 % (p / 2);  // Within its run.
      const std::int64_t run = m / 2 / (p / 2);
      const int s = direction == 0 ? device : p - 1 - device;
      const std::int64_t start = 2 * p * run + 2 * k;
      const int chunk = direction * p + s;
      timed.push_back({start + s, {Phase::kForward, chunk, m}});
      timed.push_back({start + 2 * p - 1 - s, {Phase::kBackward, chunk, m}});
    }
    std::sort(timed.begin(), timed.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    auto& items = order[static_cast<std::size_t>(device)];
    items.reserve(timed.size());
    for (const auto& [slot, item] : timed) items.push_back(item);
  }
  return order;
}

double bubble(const ScheduleShape& shape) {
  return (shape.stages - 2) * (1 + double(shape.micro_batches) / shape.stages) / 3;
}

}  // namespace

const Schedule kChimera = {
    .name = "chimera",
    .summary = "two replicas against one another, half of the micro-batches each",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .placement = placement,
    .replicas = 2,
};

}  // namespace meshwright
