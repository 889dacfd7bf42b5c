// 3F1B (nnScaler, Lin et al. 2024, for AlphaFold2's recycling): a micro-batch passes the whole
// pipeline R times (three in the paper), each time fed with what the time before gave; only the
// last time has a backward pass. Pass r on stage s is chunk r*p + s. Groups of p micro-batches make
// each pass in turn, so that a group is back at the first stage when that has finished the group's
// pass before; passes of the last time alternate with backward passes as in 1F1B. Bubble (p-1)(F+B)
// when m is a multiple of p; activations of p - s micro-batches on stage s, since passes without a
// backward pass keep nothing. Loses when m < p: then every recycling waits for the whole pipeline.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  const int last = shape.stages * (shape.chunks_per_stage - 1);
  for (int c = 0; c < static_cast<int>(shape.backward.size()); ++c) {
    if (shape.backward[static_cast<std::size_t>(c)] != (c >= last)) {
      return "3f1b needs a backward pass in the last pass over the stages, and in no other";
    }
  }
  return "";
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  const int p = shape.stages;
  const int rounds = shape.chunks_per_stage;
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(p));
  for (int s = 0; s < p; ++s) {
    auto& items = order[static_cast<std::size_t>(s)];
    items.reserve(static_cast<std::size_t>(rounds + 1) *
                  static_cast<std::size_t>(shape.micro_batches));
    const int last = (rounds - 1) * p + s;
    int backward = 0;
    for (int group = 0; group < shape.micro_batches; group += p) {
      const int end = std::min(group + p, shape.micro_batches);
      for (int r = 0; r + 1 < rounds; ++r) {
        for (int m = group; m < end; ++m) items.push_back({Phase::kForward, r * p + s, m});
      }
      for (int m = group; m < end; ++m) {
        items.push_back({Phase::kForward, last, m});
        if (m >= p - 1 - s) items.push_back({Phase::kBackward, last, backward++});
      }
    }
    while (backward < shape.micro_batches) items.push_back({Phase::kBackward, last, backward++});
  }
  return order;
}

double bubble(const ScheduleShape& shape) {
  return (shape.stages - 1) * 3.0 / (shape.chunks_per_stage + 2);
}

}  // namespace

const Schedule kThreeForwardOneBackward = {
    .name = "3f1b",
    .summary = "several passes over the stages, a backward pass of the last one",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .recycles = true,
    .vpp_min = 0,
    .vpp_max = 0,
};

}  // namespace meshwright
