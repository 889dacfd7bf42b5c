#include "sim/simulate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "models/test_pipelines.h"

namespace meshwright {
namespace {

// A cost model that makes time visible: a compute instruction takes its FLOPs in seconds, a message
// its bytes.
Seconds flops_as_seconds(const Instr& instr, const DeviceKind&, const Efficiency&, ProfileUse*) {
  return Seconds(instr.flops.value);
}
Seconds bytes_as_seconds(CollectiveKind, Bytes bytes, const CommMesh&, const Efficiency&,
                         ProfileUse*) {
  return Seconds(bytes.value);
}
const CostModel kVisible = {"visible", "for tests", flops_as_seconds, bytes_as_seconds};

// Passes of `forward`, `backward` and `weight` seconds (a full backward pass where a schedule does
// not split it), messages of `send` seconds.
struct Passes {
  double forward = 1, backward = 1, weight = 1, send = 0;
};

struct Pipeline {
  Cluster cluster = read_cluster("a100-80:1x8");
  const Schedule& schedule;
  TestPipeline test;
  Program& program;

  Pipeline(const Schedule& s, const ScheduleShape& shape, const Passes& passes = {})
      : schedule(s), test(s, shape, passes.send), program(test.program) {
    const auto instr = [](double seconds, Purpose purpose) {
      Instr i;
      i.flops = Flops(seconds);
      i.purpose = purpose;
      return i;
    };
    SegmentProgram& segment = program.segments[0];
    segment.forward = {instr(passes.forward, Purpose::kForward)};
    const double full = passes.backward + (s.splits_backward ? 0 : passes.weight);
    segment.backward = {instr(full, Purpose::kBackward)};
    if (s.splits_backward) segment.weight = {instr(passes.weight, Purpose::kBackward)};
    segment.saved = Bytes(1 << 20);
    test.fill();
  }
  // `stages` equal stages of `chunks` chunks; forward 1 s, backward 2 s per chunk.
  Pipeline(const char* name, int stages, int chunks, int micro_batches, double send = 0)
      : Pipeline(find_schedule(name), {stages, chunks, micro_batches, {}, {}},
                 Passes{.send = send}) {}

  Timeline run() {
    // Without fixed costs times are those of the instructions.
    Efficiency e = efficiency_for(cluster.kinds[0], "default");
    e.micro_batch_fixed = e.launch = e.collective_launch = e.peer_fixed = Seconds(0);
    Pricer pricer(cluster, kVisible, std::vector<Efficiency>(cluster.kinds.size(), e));
    return simulate(program, test.plan, pricer, /*keep_events=*/true);
  }
  double last_end(const Timeline& t) const {
    double end = 0;
    for (const auto& events : t.events) end = std::max(end, events.back().end.value);
    return end;
  }
};

constexpr double kSlack = 1e-9;

// GPipe and 1F1B: (m + p - 1) passes of 3 s.
TEST(Simulate, BubbleOfGpipeAndOneForwardOneBackward) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Pipeline p(schedule, 4, 1, 8);
    EXPECT_NEAR(p.last_end(p.run()), (8 + 4 - 1) * 3, kSlack) << schedule;
  }
}

// Interleaved: v m + p - 1 chunk passes of 3 s.
TEST(Simulate, InterleavingDividesTheBubble) {
  Pipeline p("interleaved", 4, 2, 8);
  EXPECT_NEAR(p.last_end(p.run()), (2 * 8 + 4 - 1) * 3, kSlack);
}

TEST(Simulate, OneStageHasNoBubble) {
  Pipeline p("1f1b", 1, 1, 5);
  const Timeline t = p.run();
  EXPECT_NEAR(p.last_end(t), 15, kSlack);
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
  auto& order = p.program.lanes[1].order;
  const auto pass = [&](Phase phase) {
    return std::find_if(order.begin(), order.end(),
                        [&](const ScheduleItem& item) { return item.phase == phase; });
  };
  std::iter_swap(pass(Phase::kForward), pass(Phase::kBackward));
  EXPECT_THROW(p.run(), InternalError);
  // A message that nobody sends.
  Pipeline q("1f1b", 2, 1, 2);
  std::erase_if(q.program.lanes[0].order,
                [](const ScheduleItem& item) { return item.phase == Phase::kSend; });
  EXPECT_THROW(q.run(), InternalError);
}

// Bubbles of the papers, in seconds: what the step takes beyond one lane's own work.
double bubble(const Schedule& schedule, const ScheduleShape& shape, const Passes& passes) {
  Pipeline p(schedule, shape, passes);
  const Timeline t = p.run();
  double work = 1e300;
  for (const StageTime& s : t.stages) {
    work = std::min(work, s.spent[static_cast<std::size_t>(Purpose::kForward)].value +
                              s.spent[static_cast<std::size_t>(Purpose::kBackward)].value);
  }
  return p.last_end(t) - work;
}

TEST(Simulate, BubblesOfThePapers) {
  for (int p : {2, 4, 6, 8}) {
    for (int m : {2 * p, 4 * p, 6 * p}) {
      for (const Passes& x : {Passes{1, 1, 1}, Passes{2, 2, 1}, Passes{3, 4, 2}, Passes{1, 1, 0}}) {
        SCOPED_TRACE(
            fmt::format("p = {}, m = {}, F B W = {} {} {}", p, m, x.forward, x.backward, x.weight));
        const double F = x.forward;
        const double B = x.backward;
        const double W = x.weight;
        const auto of = [&](const Schedule& s, int chunks = 1, std::vector<int> everywhere = {}) {
          return bubble(s, {p, chunks, m, {}, std::move(everywhere)}, x);
        };
        const double whole = (p - 1) * (F + B + W);
        EXPECT_NEAR(of(kGpipe), whole, kSlack);
        EXPECT_NEAR(of(kOneForwardOneBackward), whole, kSlack);
        EXPECT_NEAR(of(kInterleaved, 2), whole, kSlack);  // Of chunks of half the size.
        EXPECT_NEAR(of(kTeraPipe, 3), whole, kSlack);     // Of slices.
        EXPECT_NEAR(of(kThreeForwardOneBackward, 3), whole, kSlack);
        EXPECT_NEAR(of(kZeroBubbleH1), (p - 1) * (F + B - W), kSlack);
        EXPECT_NEAR(of(kChimera), (p - 2) * (B + W + (m / p - 1) * (B + W - F)), kSlack);
        EXPECT_NEAR(of(kInterlaced, 1, {0, p + 1}), whole + (m - 1) * (B + W - F), kSlack);
        if (B <= F) {
          EXPECT_NEAR(of(kDualPipe), (p / 2 - 1) * (F + B - W), kSlack);
        }
        if (F == B && B == W) {
          EXPECT_NEAR(of(kZeroBubbleV, 2), (p - 1) * F, kSlack);
        }
      }
    }
  }
}

// What schedules say of themselves, which a search believes.
TEST(Simulate, BubblesInUnitsOfWork) {
  for (const Schedule* s : all_schedules()) {
    ScheduleShape shape{4, std::max(s->vpp_min, 1), 16, {}, {}};
    if (s->takes_everywhere) shape.everywhere = {2};
    if (s->recycles) shape.chunks_per_stage = 3;
    const int passes = s->recycles ? 3 + 2 : 3 * shape.chunks_per_stage;
    EXPECT_NEAR(bubble(*s, shape, {1, 1, 1}), s->bubble(shape) * passes, kSlack) << s->name;
  }
}

// Between its first and its last pass no stage of ZB-V waits when passes are equal and the pipeline
// fills.
TEST(Simulate, ZeroBubbleVHasNone) {
  for (int p : {2, 4, 8}) {
    for (int m : {2 * p - 1, 2 * p, 3 * p + 1}) {
      Pipeline pipeline(kZeroBubbleV, {p, 2, m, {}, {}});
      for (const auto& events : pipeline.run().events) {
        EXPECT_NEAR((events.back().end - events.front().start).value, 6 * m, kSlack);
      }
    }
  }
}

// Activations are held until the weight pass, forward-only passes keep none.
TEST(Simulate, ActivationsOfSplitBackwardPasses) {
  const auto held = [](const Schedule& schedule, int chunks, std::size_t stage) {
    Pipeline p(schedule, {4, chunks, 8, {}, {}});
    return p.run().memory[stage].activations.value / (1 << 20);
  };
  EXPECT_EQ(held(kZeroBubbleH1, 1, 0), 4);
  EXPECT_EQ(held(kZeroBubbleH1, 1, 3), 4);
  EXPECT_EQ(held(kZeroBubbleV, 2, 0), 8);  // Of half the size.
  EXPECT_EQ(held(kThreeForwardOneBackward, 3, 0), 4);
  EXPECT_EQ(held(kDualPipe, 1, 0), 5);
}

// A stage over all lanes: every lane holds its parameters and spends its time.
TEST(Simulate, LanesAddUpTheirStages) {
  Pipeline p(kInterlaced, {2, 1, 4, {}, {0}});
  p.program.segments[0].parameters = {{ValueId(0), 1000, 0, false, false}};
  const Timeline t = p.run();
  ASSERT_EQ(t.stages.size(), 2u);
  for (std::size_t lane : {0u, 1u}) {
    EXPECT_EQ(t.memory[lane].parameters.value, 2 * 1000 * 2);
    EXPECT_NEAR(t.stages[lane].spent[static_cast<std::size_t>(Purpose::kForward)].value, 8, kSlack);
  }
  // All lanes run a shared pass at the same time.
  const auto shared = [&](std::size_t lane) {
    std::vector<double> starts;
    for (const Event& e : t.events[lane]) {
      if (e.item.chunk == 0) starts.push_back(e.start.value);
    }
    return starts;
  };
  EXPECT_EQ(shared(0).size(), 8u);
  EXPECT_EQ(shared(0), shared(1));
}

}  // namespace
}  // namespace meshwright
