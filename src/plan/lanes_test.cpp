#include "plan/lanes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "base/error.h"
#include "models/test_pipelines.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::string text(const ScheduleItem& item) {
  return fmt::format("{} {} of {}", phase_name(item.phase), item.chunk, item.micro_batch);
}

std::string text(const ScheduleShape& shape) {
  return fmt::format("{} stages, {} chunks each, {} everywhere, {} micro-batches", shape.stages,
                     shape.chunks_per_stage, shape.everywhere.size(), shape.micro_batches);
}

// Runs all lanes as real engines may: a pass runs when what it needs by the chain of chunks is
// done; a wait for a send ends when the receiver has issued its side, a wait for a receive when the
// sender has. Returns what is wrong, or nothing.
class Execution {
 public:
  Execution(const Schedule& schedule, const TestPipeline& pipeline)
      : schedule_(schedule), shape_(pipeline.shape), program_(pipeline.program) {
    for (const auto& [from, to] : chain_of(schedule, shape_)) {
      before_[{Phase::kForward, to}].push_back({Phase::kForward, from});
      if (backward(from) && backward(to)) {
        before_[{Phase::kBackward, from}].push_back({Phase::kBackward, to});
      }
    }
    covered_ = lanes_of_stages(program_.lanes);
  }

  std::string run() {
    std::vector<std::size_t> next(program_.lanes.size(), 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t l = 0; l < next.size(); ++l) {
        const auto& order = program_.lanes[l].order;
        while (next[l] < order.size() && may(l, order[next[l]])) {
          if (!problem_.empty()) return problem_;
          ++next[l];
          moved = true;
        }
      }
    }
    for (std::size_t l = 0; l < next.size(); ++l) {
      if (next[l] < program_.lanes[l].order.size()) {
        return fmt::format("lane {} is stuck at {}", l, text(program_.lanes[l].order[next[l]]));
      }
    }
    return every_pass_once();
  }

 private:
  using Message = std::tuple<int, int, std::size_t, std::size_t>;  // transfer, micro-batch, lanes.

  bool backward(int chunk) const {
    return program_.chunks[static_cast<std::size_t>(chunk)].backward;
  }
  const std::vector<int>& lanes(int chunk) const {
    return covered_[static_cast<std::size_t>(
        program_.chunks[static_cast<std::size_t>(chunk)].stage)];
  }

  // Whether the item can be done now; does it.
  bool may(std::size_t lane, const ScheduleItem& item) {
    if (is_pass(item.phase)) return pass(lane, item);
    const Transfer& t = program_.transfers[static_cast<std::size_t>(item.chunk)];
    const bool sends = item.phase == Phase::kSend || item.phase == Phase::kSendWait;
    for (int peer : lanes(sends ? t.to_chunk : t.from_chunk)) {
      const auto other = static_cast<std::size_t>(peer);
      if (other == lane) continue;  // What a lane has already is no message.
      const Message message{item.chunk, item.micro_batch, sends ? lane : other,
                            sends ? other : lane};
      const std::pair link{std::get<2>(message), std::get<3>(message)};
      switch (item.phase) {
        case Phase::kSend:
          if (done_.count({t.gradient ? Phase::kBackward : Phase::kForward, t.from_chunk,
                           item.micro_batch}) == 0)
            problem_ = text(item) + " is sent before it is there";
          issue(sent_, link, message, received_);
          break;
        case Phase::kReceive:
          issue(received_, link, message, sent_);
          break;
        case Phase::kSendWait:
          if (received_all_.count(message) == 0) return false;
          break;
        default:
          if (received_all_.count(message) == 0) problem_ = text(item) + " waits for no receive";
          if (sent_all_.count(message) == 0) return false;
      }
    }
    return true;
  }

  // Messages of a link must be issued in the same order on both sides.
  void issue(std::map<std::pair<std::size_t, std::size_t>, std::deque<Message>>& mine,
             std::pair<std::size_t, std::size_t> link, const Message& message,
             std::map<std::pair<std::size_t, std::size_t>, std::deque<Message>>& theirs) {
    (&mine == &sent_ ? sent_all_ : received_all_).insert(message);
    auto& other = theirs[link];
    if (other.empty()) {
      mine[link].push_back(message);
    } else if (other.front() == message) {
      other.pop_front();
    } else {
      problem_ = fmt::format("transfer {} of {} meets another one", std::get<0>(message),
                             std::get<1>(message));
    }
  }

  bool pass(std::size_t lane, const ScheduleItem& item) {
    const auto& together = lanes(item.chunk);
    if (std::find(together.begin(), together.end(), static_cast<int>(lane)) == together.end()) {
      problem_ = text(item) + " is on another lane";
    }
    const auto key = std::tuple{item.phase, item.chunk, item.micro_batch};
    auto& here = at_[key];
    here.insert(lane);
    if (done_.count(key) != 0) {
      // The other lanes of a shared pass go on once all have come.
      if (!here.insert(lane + 1000).second) problem_ = text(item) + " twice";
      return true;
    }
    if (here.size() < together.size()) return false;
    const auto needs = [&](Phase phase, int chunk) {
      if (done_.count({phase, chunk, item.micro_batch}) == 0)
        problem_ = fmt::format("{} before {} of chunk {}", text(item), phase_name(phase), chunk);
    };
    for (const auto& [phase, chunk] : before_[{item.phase, item.chunk}]) needs(phase, chunk);
    if (item.phase == Phase::kBackward) needs(Phase::kForward, item.chunk);
    if (item.phase == Phase::kWeight) needs(Phase::kBackward, item.chunk);
    here.insert(lane + 1000);
    done_.insert(key);
    return true;
  }

  std::string every_pass_once() const {
    std::size_t wanted = 0;
    for (int m = 0; m < shape_.micro_batches; ++m) {
      const int replica = m % schedule_.replicas;
      for (int c = replica * shape_.chunks(); c < (replica + 1) * shape_.chunks(); ++c) {
        std::vector<Phase> phases = {Phase::kForward};
        if (backward(c)) phases.push_back(Phase::kBackward);
        if (backward(c) && schedule_.splits_backward) phases.push_back(Phase::kWeight);
        for (Phase phase : phases) {
          if (done_.count({phase, c, m}) == 0) return "missing: " + text({phase, c, m});
          ++wanted;
        }
      }
    }
    return done_.size() == wanted ? "" : "more passes than there are";
  }

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  const Program& program_;
  std::map<std::pair<Phase, int>, std::vector<std::pair<Phase, int>>> before_;
  std::vector<std::vector<int>> covered_;
  std::set<std::tuple<Phase, int, int>> done_;
  std::map<std::tuple<Phase, int, int>, std::set<std::size_t>> at_;
  std::map<std::pair<std::size_t, std::size_t>, std::deque<Message>> sent_, received_;
  std::set<Message> sent_all_, received_all_;
  std::string problem_;
};

// All shapes up to a size that a schedule takes.
template <class Visit>
void each_shape(const Schedule& schedule, Visit&& visit) {
  for (int stages : {1, 2, 3, 4, 6, 8}) {
    for (int chunks : {1, 2, 3}) {
      for (int micro : {1, 2, 3, 4, 7, 8, 16, 24}) {
        const ScheduleShape shape{stages, chunks, micro, {}, {}};
        if (refusal(schedule, shape).empty()) visit(shape);
      }
    }
  }
}

TEST(Schedules, EveryPassOnceAndWithoutDeadlock) {
  for (const Schedule* schedule : all_schedules()) {
    int shapes = 0;
    each_shape(*schedule, [&](const ScheduleShape& shape) {
      TestPipeline pipeline(*schedule, shape);
      pipeline.fill();
      EXPECT_EQ(Execution(*schedule, pipeline).run(), "") << schedule->name << ": " << text(shape);
      ++shapes;
    });
    EXPECT_GT(shapes, 10) << schedule->name;
  }
}

RC_GTEST_PROP(Schedules, RandomShapesRun, ()) {
  const Schedule& schedule = *all_schedules()[static_cast<std::size_t>(
      *rc::gen::inRange<int>(0, static_cast<int>(all_schedules().size())))];
  ScheduleShape shape;
  shape.stages = *rc::gen::inRange(1, 9);
  shape.chunks_per_stage = *rc::gen::inRange(1, 4);
  shape.micro_batches = *rc::gen::inRange(1, 30);
  if (schedule.takes_everywhere) {
    const int shared = *rc::gen::inRange(0, 4);
    std::set<int> chunks;
    for (int i = 0; i < shared; ++i) {
      chunks.insert(*rc::gen::inRange(0, shape.stages * shape.chunks_per_stage + shared));
    }
    shape.everywhere.assign(chunks.begin(), chunks.end());
    // As many chunks as there are in all.
    while (!shape.everywhere.empty() && shape.everywhere.back() >= shape.chunks()) {
      shape.everywhere.pop_back();
    }
  }
  RC_PRE(refusal(schedule, shape).empty());
  RC_PRE(shape.everywhere.empty() || shape.stages > 1);
  if (!schedule.recycles && *rc::gen::inRange(0, 3) == 0) {
    // The first chunks are frozen.
    const int frozen = *rc::gen::inRange(0, shape.chunks());
    for (int c = 0; c < shape.chunks() * schedule.replicas; ++c) {
      shape.backward.push_back(c % shape.chunks() >= frozen);
    }
  }
  TestPipeline pipeline(schedule, shape);
  pipeline.fill();
  RC_ASSERT(Execution(schedule, pipeline).run() == "");
}

// Chunks of one replica at the worst moment on the fullest lane, in micro-batches' worth of a stage
// (chunks divided by the chunks per stage).
double most_in_flight(const Schedule& schedule, const ScheduleShape& shape, int lane) {
  const auto orders = pass_orders(schedule, shape);
  int now = 0;
  int most = 0;
  const Phase last = schedule.splits_backward ? Phase::kWeight : Phase::kBackward;
  for (const ScheduleItem& item : orders[static_cast<std::size_t>(lane)]) {
    if (schedule.recycles && item.chunk < shape.stages * (shape.chunks_per_stage - 1)) continue;
    if (item.phase == Phase::kForward) most = std::max(most, ++now);
    if (item.phase == last) --now;
  }
  return most / (schedule.recycles ? 1.0 : shape.chunks_per_stage);
}

TEST(Schedules, ActivationsInFlightAsInThePapers) {
  for (int p : {2, 4, 8}) {
    for (int m : {2 * p, 4 * p}) {
      for (int s = 0; s < p; ++s) {
        const auto at = [&](const Schedule& schedule, int chunks = 1) {
          return most_in_flight(schedule, {p, chunks, m, {}, {}}, s);
        };
        EXPECT_EQ(at(kGpipe), m);
        EXPECT_EQ(at(kOneForwardOneBackward), p - s);
        EXPECT_EQ(at(kInterlaced), p - s);
        EXPECT_EQ(at(kInterleaved, 2) * 2, p + 2 * (p - 1 - s) + 1);
        EXPECT_LE(at(kZeroBubbleH1), p);
        EXPECT_LE(at(kZeroBubbleV, 2), p);
        EXPECT_GE(at(kChimera), p / 2);
        EXPECT_LE(at(kChimera), p);
        EXPECT_LE(at(kDualPipe), p + 1);
        EXPECT_EQ(at(kTeraPipe, 3) * 3, 3 + p - 1 - s);
        EXPECT_EQ(at(kThreeForwardOneBackward, 3), p - s);
      }
    }
  }
}

TEST(Schedules, RefuseWhatTheyCannotDo) {
  EXPECT_THAT(refusal(kChimera, {3, 1, 4, {}, {}}), HasSubstr("even number of stages"));
  EXPECT_THAT(refusal(kDualPipe, {5, 1, 4, {}, {}}), HasSubstr("even number of stages"));
  EXPECT_THAT(refusal(kZeroBubbleV, {4, 1, 4, {}, {}}), HasSubstr("two chunks per stage"));
  EXPECT_THAT(refusal(kZeroBubbleH1, {4, 2, 4, {}, {}}), HasSubstr("use zb-v"));
  EXPECT_THAT(refusal(kInterleaved, {4, 2, 6, {}, {}}), HasSubstr("multiples"));
  EXPECT_THAT(refusal(kGpipe, {2, 1, 4, {}, {0}}), HasSubstr("use interlaced"));
  EXPECT_THAT(refusal(kThreeForwardOneBackward, {2, 2, 4, {true, true, true, true}, {}}),
              HasSubstr("in the last pass over the stages"));
  EXPECT_THROW(pass_orders(kChimera, {3, 1, 4, {}, {}}), Error);
}

TEST(Lanes, SendsFollowTheirPassAndReceivesComeAhead) {
  TestPipeline pipeline(kOneForwardOneBackward, {2, 1, 2, {}, {}});
  pipeline.fill();
  std::string first;
  for (const ScheduleItem& item : pipeline.program.lanes[0].order) first += text(item) + "\n";
  // Transfer 0 carries activations, 1 their gradients.
  EXPECT_EQ(first,
            "forward 0 of 0\nsend 0 of 0\n"
            "receive 1 of 0\nforward 0 of 1\nsend wait 0 of 0\nsend 0 of 1\n"
            "receive 1 of 1\nreceive wait 1 of 0\nbackward 0 of 0\n"
            "receive wait 1 of 1\nbackward 0 of 1\nsend wait 0 of 1\n");
}

// A model that was not cut into slices comes back to the first stage.
TEST(Lanes, SlicesDoNotComeBack) {
  TestPipeline pipeline(kTeraPipe, {2, 2, 4, {}, {}});
  pipeline.program.transfers.push_back({1, 2, false, {}, true, Bytes(1)});
  try {
    pipeline.fill();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(
        e.message(),
        "terapipe needs slices that go from stage to stage, but chunk 2 on stage 0 needs what "
        "chunk 1 leaves on stage 1");
  }
}

Stage stage_on(int first, int count) {
  Stage stage;
  stage.mesh.first_device = first;
  if (count > 1) stage.mesh.axes = {{"dp", count, 1}};
  return stage;
}

TEST(Lanes, OverlappingStages) {
  Plan plan;
  plan.stages = {stage_on(0, 2), stage_on(2, 2), stage_on(0, 4), stage_on(2, 2)};
  const std::vector<Lane> lanes = lanes_of(plan);
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes[0].stages, (std::vector{0, 2}));
  EXPECT_EQ(lanes[1].stages, (std::vector{1, 2, 3}));
  EXPECT_EQ(lanes[1].mesh, plan.stages[1].mesh);
  EXPECT_EQ(lanes_of_stages(lanes)[2], (std::vector{0, 1}));
}

std::string error_of(const Plan& plan) {
  try {
    schedule_shape(plan, lanes_of(plan));
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

TEST(Lanes, OverlapsThatAreNoLanes) {
  Plan plan;
  plan.stages = {stage_on(0, 3), stage_on(2, 3)};
  EXPECT_EQ(error_of(plan),
            "stages 0 and 1 share 1 devices, but the smallest of them, stage 0, has 3");
  plan.stages = {stage_on(0, 2), stage_on(0, 4)};
  EXPECT_EQ(error_of(plan), "stage 1 shares 2 of its 4 devices with smaller stages, but not all");
  plan.stages = {stage_on(0, 4), stage_on(0, 2), stage_on(2, 2)};
  EXPECT_EQ(error_of(plan),
            "stage 0 lies over other stages but comes before stage 1, which does not");
  plan.stages = {stage_on(0, 1), stage_on(1, 1), stage_on(2, 1), stage_on(0, 2)};
  plan.chunks = {{3, 0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}};
  EXPECT_EQ(error_of(plan), "stage 3 lies over stages 0 and 1 of 3");
  plan.stages.pop_back();
  plan.chunks = {{0, 0, 1}, {1, 1, 2}, {2, 2, 3}, {0, 3, 4}};
  EXPECT_EQ(error_of(plan), "4 chunks do not go round 3 stages evenly");
  plan.schedule = "chimera";
  EXPECT_EQ(error_of(plan), "chimera has 2 replicas of the model with as many chunks each");
  plan.schedule = "1f1b";
  plan.chunks[2].replica = 1;
  EXPECT_EQ(error_of(plan), "chunk 2 belongs to replica 1 of 1");
}

}  // namespace
}  // namespace meshwright
