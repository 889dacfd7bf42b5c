// DualPipe (DeepSeek-V3 report 2024, section 3.2.1): two replicas against one another as in
// Chimera, micro-batches fed from both ends, backward passes split only where the pipeline fills
// and drains. In the steady state a forward pass of one direction stands next to a backward pass of
// the other, so that an engine can hide the communication of each behind the compute of the other;
// this file gives the order alone. Bubble (p/2 - 1)(F&B + B' - 3W) where a pair starts and ends as
// one, takes F&B, and B' is a full backward pass; here both passes of a pair start and send on
// their own, which leaves (p/2 - 1)(F + B - W) when B <= F, half of ZB-H1's. Activations of p+1
// micro-batches at most, parameters twice. Needs p even; the pattern is made for m >= 2p. Loses to
// ZB-V in the memory of parameters, and in time where pairs do not overlap.
#include <algorithm>

#include "plan/schedule.h"

namespace meshwright {
namespace {

std::string_view refuses(const ScheduleShape& shape) {
  if (shape.chunks_per_stage != 1) return "dualpipe has one chunk per stage and direction";
  if (shape.stages % 2 != 0) return "dualpipe needs an even number of stages";
  if (shape.micro_batches < 2) return "dualpipe needs two micro-batches, one per direction";
  return "";
}

int placement(const ScheduleShape& shape, int chunk) {
  return chunk < shape.stages ? chunk : 2 * shape.stages - 1 - chunk;
}

// The order of one device: of the two directions "near" is the one whose first stage is closer.
class DeviceOrder {
 public:
  DeviceOrder(const ScheduleShape& shape, int device) : shape_(shape) {
    const int p = shape.stages;
    distance_ = std::min(device, p - 1 - device);
    near_ = device < p / 2 ? 0 : 1;
    stage_[0] = device;
    stage_[1] = p - 1 - device;
  }

  std::vector<ScheduleItem> run() {
    // Every direction gets the same number of micro-batches, enough to fill the pipeline.
    const int half = std::max((shape_.micro_batches + 1) / 2, shape_.stages);
    const int inward = shape_.stages / 2 - distance_ - 1;  // Devices up to the middle.
    constexpr int kNear = 0;
    constexpr int kFar = 1;
    for (int i = 0; i < 2 * inward; ++i) forward(kNear);
    for (int i = 0; i <= distance_; ++i) forward(kNear), forward(kFar);
    for (int i = 0; i < inward; ++i) split_backward(kFar), weight(), forward(kFar);
    for (int i = 0; i < half - shape_.stages + distance_ + 1; ++i) {
      forward(kNear), backward(kFar);
      forward(kFar), backward(kNear);
    }
    for (int i = 0; i < inward; ++i) backward(kFar), forward(kFar), backward(kNear);
    // The second half of the last passes is split, to pass gradients on sooner.
    for (int i = 0; i < 2 * (distance_ + 1); ++i) {
      const int direction = i % 2 == 0 ? kFar : kNear;
      i <= distance_ ? backward(direction) : split_backward(direction);
    }
    for (int i = 0; i < inward; ++i) weight(), split_backward(kNear);
    while (next_weight_ < put_off_.size()) weight();
    return std::move(items_);
  }

 private:
  void add(Phase phase, int direction, int k) {
    const int replica = near_ ^ direction;
    const int m = 2 * k + replica;
    if (m >= shape_.micro_batches) return;  // Does not exist.
    items_.push_back({phase, replica * shape_.stages + stage_[replica], m});
  }
  void forward(int direction) { add(Phase::kForward, direction, forward_[direction]++); }
  void backward(int direction) {
    const int k = backward_[direction]++;
    add(Phase::kBackward, direction, k);
    add(Phase::kWeight, direction, k);
  }
  void split_backward(int direction) {
    const int k = backward_[direction]++;
    add(Phase::kBackward, direction, k);
    put_off_.push_back({direction, k});
  }
  void weight() {
    const auto [direction, k] = put_off_[next_weight_++];
    add(Phase::kWeight, direction, k);
  }

  const ScheduleShape& shape_;
  int distance_ = 0;  // To the nearer end.
  int near_ = 0;      // Replica whose first stage is nearer.
  int stage_[2] = {};
  int forward_[2] = {};
  int backward_[2] = {};
  std::vector<std::pair<int, int>> put_off_;
  std::size_t next_weight_ = 0;
  std::vector<ScheduleItem> items_;
};

std::vector<std::vector<ScheduleItem>> generate(const ScheduleShape& shape) {
  std::vector<std::vector<ScheduleItem>> order;
  for (int d = 0; d < shape.stages; ++d) order.push_back(DeviceOrder(shape, d).run());
  return order;
}

double bubble(const ScheduleShape& shape) { return (shape.stages - 2) / 6.0; }

}  // namespace

const Schedule kDualPipe = {
    .name = "dualpipe",
    .summary =
        "two replicas against one another, forward beside backward, backward split at the ends",
    .refuses = refuses,
    .generate = generate,
    .bubble = bubble,
    .placement = placement,
    .replicas = 2,
    .splits_backward = true,
};

}  // namespace meshwright
