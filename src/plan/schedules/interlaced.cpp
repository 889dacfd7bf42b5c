// Interlaced pipeline (nnScaler, Lin et al. 2024, for T5 and mBART): a layer that is too large for
// one stage and too cheap to be one (a huge embedding, the output layer) is split over all devices;
// all of them run it together, in between the passes of a 1F1B pipeline of the other layers.
// In slots of one pass, micro-batch m has its forward pass on stage s at slot s + 2m and its
// backward pass at 2p - 1 - s + 2m (1F1B); a chunk of all devices that stands before stage k in the
// chain runs just before the forward slot and just after the backward slot of that stage. All lanes
// meet there. Bubble (p-1)(F+B) + (m-1)(B-F): since all devices meet twice per micro-batch, a slot
// lasts as long as its longest pass. Activations as under 1F1B. Pays when the shared layer would
// unbalance a pipeline by more than that, loses otherwise.
#include <algorithm>
#include <cstdint>
#include <tuple>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  return shape.chunks_per_stage == 1
             ? ""
             : "interlaced has one chunk per stage besides those of all devices";
}

int placement(const ScheduleShape& shape, int chunk) {
  const auto& shared = shape.everywhere;
  const auto at = std::lower_bound(shared.begin(), shared.end(), chunk);
  if (at != shared.end() && *at == chunk) return kEverywhere;
  return chunk - static_cast<int>(at - shared.begin());
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  const int p = shape.stages;
  // (half-slot, forward before backward, place among those of the half-slot)
  using Time = std::tuple<std::int64_t, int, int>;
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(p));
  std::vector<std::pair<Time, ScheduleItem>> timed;
  for (int lane = 0; lane < p; ++lane) {
    timed.clear();
    for (int c = 0; c < shape.chunks(); ++c) {
      const int at = placement(shape, c);
      if (at != lane && at != kEverywhere) continue;
      // The stage itself, or the one that a chunk of all devices precedes.
      const auto before = std::lower_bound(shape.everywhere.begin(), shape.everywhere.end(), c);
      const int stage = c - static_cast<int>(before - shape.everywhere.begin());
      const int shift = at == kEverywhere ? 1 : 0;
      for (int m = 0; m < shape.micro_batches; ++m) {
        const std::int64_t start = 2 * std::int64_t{m};
        timed.push_back({{2 * (start + stage) - shift, 0, c}, {Phase::kForward, c, m}});
        timed.push_back(
            {{2 * (start + 2 * p - 1 - stage) + shift, 1, -c}, {Phase::kBackward, c, m}});
      }
    }
    std::sort(timed.begin(), timed.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    auto& items = order[static_cast<std::size_t>(lane)];
    items.reserve(timed.size());
    for (const auto& [time, item] : timed) items.push_back(item);
  }
  return order;
}

double bubble(const ScheduleShape& shape) {
  return shape.stages - 1 + (shape.micro_batches - 1) / 3.0;
}

}  // namespace

const Schedule kInterlaced = {
    .name = "interlaced",
    .summary = "1F1B with chunks that all devices run together in between",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .placement = placement,
    .takes_everywhere = true,
    .vpp_min = 0,
    .vpp_max = 0,
};

}  // namespace meshwright
