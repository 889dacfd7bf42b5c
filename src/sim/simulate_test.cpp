#include "sim/simulate.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "plan/lower.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

// A cost model that makes time visible: a compute instruction takes its FLOPs in seconds, a message
// its bytes.
Seconds flops_as_seconds(const Instr& instr, const DeviceKind&, const Efficiency&) {
  return Seconds(instr.flops.value);
}
Seconds bytes_as_seconds(CollectiveKind, Bytes bytes, const CommMesh&, const Efficiency&) {
  return Seconds(bytes.value);
}
const CostModel kVisible = {"visible", "for tests", flops_as_seconds, bytes_as_seconds};

struct Pipeline {
  Cluster cluster = read_cluster("a100-80:1x8");
  Plan plan;
  Program program;

  // `stages` equal stages of `chunks` chunks; forward 1 s, backward 2 s per chunk; messages take
  // `send`.
  Pipeline(const char* schedule, int stages, int chunks, int micro_batches, double send = 0) {
    Instr forward;
    forward.flops = Flops(1);
    Instr backward;
    backward.flops = Flops(2);
    backward.purpose = Purpose::kBackward;
    SegmentProgram segment;
    segment.forward = {forward};
    segment.backward = {backward};
    segment.saved = Bytes(1 << 20);
    program.segments = {segment};
    program.micro_batches = micro_batches;
    const auto orders = find_schedule(schedule).generate({stages, chunks, micro_batches});
    for (int s = 0; s < stages; ++s) {
      Stage stage;
      stage.mesh.first_device = s;
      program.stages.push_back({});
      program.lanes.push_back({{s}, stage.mesh, orders[static_cast<std::size_t>(s)]});
      plan.stages.push_back(stage);
    }
    for (int c = 0; c < stages * chunks; ++c)
      program.chunks.push_back({c % stages, 0, {0}, Bytes(send)});
  }

  Timeline run() {
    Pricer pricer(cluster, kVisible, "default");
    return simulate(program, plan, pricer, /*keep_events=*/true);
  }
  // Fixed costs on the host, which the formulas below leave out.
  double last_end(const Timeline& t) const {
    double end = 0;
    for (const auto& events : t.events) end = std::max(end, events.back().end.value);
    return end;
  }
};

constexpr double kHostSlack = 0.02;  // Fixed costs per micro-batch, relative.

// GPipe and 1F1B: (m + p - 1) passes of 3 s.
TEST(Simulate, BubbleOfGpipeAndOneForwardOneBackward) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Pipeline p(schedule, 4, 1, 8);
    EXPECT_NEAR(p.last_end(p.run()), (8 + 4 - 1) * 3, 33 * kHostSlack) << schedule;
  }
}

// Interleaved: v m + p - 1 chunk passes of 3 s.
TEST(Simulate, InterleavingDividesTheBubble) {
  Pipeline p("interleaved", 4, 2, 8);
  EXPECT_NEAR(p.last_end(p.run()), (2 * 8 + 4 - 1) * 3, 57 * kHostSlack);
}

TEST(Simulate, OneStageHasNoBubble) {
  Pipeline p("1f1b", 1, 1, 5);
  const Timeline t = p.run();
  EXPECT_NEAR(p.last_end(t), 15, 15 * kHostSlack);
  EXPECT_NEAR(t.stages[0].bubble.value, 0, 1e-9);
}

// Micro-batches in flight: p - s under 1F1B (Narayanan et al. 2021), all m under GPipe.
TEST(Simulate, ActivationsInFlight) {
  const auto held = [](const char* schedule, std::size_t stage) {
    Pipeline p(schedule, 4, 1, 8);
    return p.run().memory[stage].activations.value / (1 << 20);
  };
  EXPECT_EQ(held("1f1b", 0), 4);
  EXPECT_EQ(held("1f1b", 3), 1);
  EXPECT_EQ(held("gpipe", 0), 8);
  EXPECT_EQ(held("gpipe", 3), 8);
}

TEST(Simulate, PartsOfTheStepAddUp) {
  Pipeline p("1f1b", 4, 1, 8, 0.25);
  const Timeline t = p.run();
  for (const StageTime& s : t.stages) {
    double sum = s.host.value + s.bubble.value;
    for (Seconds part : s.spent) sum += part.value;
    EXPECT_NEAR(sum, t.step.value, 1e-9);
  }
}

TEST(Simulate, NeverFasterThanTheCriticalPathAndSlowerLinksNeverHelp) {
  double previous = 0;
  for (double send : {0.0, 0.1, 0.5, 1.0, 2.0}) {
    Pipeline p("1f1b", 4, 1, 8, send);
    const double end = p.last_end(p.run());
    EXPECT_GE(end, 4 * 3 + 6 * send);  // One micro-batch there and back.
    EXPECT_GE(end, 8 * 3);             // One stage's work.
    EXPECT_GE(end, previous);
    previous = end;
  }
}

TEST(Simulate, DeadlockIsFound) {
  Pipeline p("1f1b", 2, 1, 2);
  std::swap(p.program.lanes[1].order[0],
            p.program.lanes[1].order[1]);  // Backward before forward.
  EXPECT_THROW(p.run(), InternalError);
}

}  // namespace
}  // namespace meshwright
