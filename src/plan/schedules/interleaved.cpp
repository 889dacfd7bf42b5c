// Interleaved 1F1B (Narayanan et al. 2021, section 2.2): every stage holds v chunks of the model;
// micro-batches go round in groups of p. Bubble (p-1)/(v*m) of the ideal time; on stage s up to
// (v-1)*p + 2(p-1-s) + 1 chunks' activations are in flight, and v times as many transfers cross
// stages. Needs m a multiple of p.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  if (shape.micro_batches % shape.stages != 0) {
    return "interleaved needs micro-batches in multiples of the number of stages";
  }
  return "";
}

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  const int p = shape.stages;
  const int v = shape.chunks_per_stage;
  const int total = shape.micro_batches * v;
  // The k-th forward pass of a stage: groups of p micro-batches visit all v chunks in turn.
  const auto item = [&](Phase phase, int stage, int k) {
    const int group = k / (p * v);
    const int inside = k % (p * v);
    int chunk = inside / p;
    if (phase == Phase::kBackward) chunk = v - 1 - chunk;
    return ScheduleItem{phase, chunk * p + stage, group * p + inside % p};
  };
  std::vector<std::vector<ScheduleItem>> order(static_cast<std::size_t>(p));
  for (int s = 0; s < p; ++s) {
    auto& items = order[static_cast<std::size_t>(s)];
    items.reserve(2 * static_cast<std::size_t>(total));
    const int warmup = std::min((p - 1 - s) * 2 + (v - 1) * p, total);
    int forward = 0;
    int backward = 0;
    while (forward < warmup) items.push_back(item(Phase::kForward, s, forward++));
    while (forward < total) {
      items.push_back(item(Phase::kForward, s, forward++));
      items.push_back(item(Phase::kBackward, s, backward++));
    }
    while (backward < total) items.push_back(item(Phase::kBackward, s, backward++));
  }
  return order;
}

double bubble(const ScheduleShape& shape) { return (shape.stages - 1.0) / shape.chunks_per_stage; }

}  // namespace

const Schedule kInterleaved = {
    .name = "interleaved",
    .summary = "1F1B over several chunks per stage",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .vpp_min = 2,
    .vpp_max = 1 << 20,
};

}  // namespace meshwright
