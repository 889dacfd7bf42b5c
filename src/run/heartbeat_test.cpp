#include "run/heartbeat.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class HeartbeatTest : public testing::Test {
 protected:
  HeartbeatTest() : map_(BeatMap::create(3)) {
    ::setenv(kBeatsVariable, std::to_string(map_.fd()).c_str(), 1);
  }
  ~HeartbeatTest() override { ::unsetenv(kBeatsVariable); }

  BeatReading read(int rank) const { return read_slot(map_.slot(rank)); }
  static std::string error_of(int rank) {
    try {
      const Heartbeat heartbeat(rank);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  BeatMap map_;
};

TEST_F(HeartbeatTest, StatesFollowARank) {
  EXPECT_EQ(read(1).state, RankState::kAbsent);
  Heartbeat heartbeat(1);
  EXPECT_TRUE(heartbeat.supervised());
  EXPECT_EQ(read(1).state, RankState::kStarting);
  EXPECT_EQ(read(1).place, "");
  heartbeat.where({.phase = "loading the plan"});
  EXPECT_EQ(read(1).state, RankState::kRunning);
  EXPECT_EQ(read(1).place, "loading the plan");
  heartbeat.finish();
  EXPECT_EQ(read(1).state, RankState::kFinished);
  EXPECT_EQ(read(0).state, RankState::kAbsent);
  EXPECT_EQ(read(2).state, RankState::kAbsent);
}

TEST_F(HeartbeatTest, PlacesReadAsSentences) {
  Heartbeat heartbeat(0);
  heartbeat.where({.step = 3,
                   .phase = "forward",
                   .chunk = 1,
                   .micro_batch = 2,
                   .instruction = 17,
                   .kind = "linear",
                   .name = "layers.1.mlp.up"});
  EXPECT_EQ(read(0).place,
            "step 3, forward of chunk 1, micro-batch 2, instruction 17: linear layers.1.mlp.up");
  heartbeat.where({.step = 4, .chunk = 0, .kind = "all_reduce"});
  EXPECT_EQ(read(0).place, "step 4, chunk 0: all_reduce");
  heartbeat.where({.step = 1'000'000'000'000, .name = "a\nb"});
  EXPECT_EQ(read(0).place, "step 1000000000000: a b");
  EXPECT_EQ(read(0).places, 3u);
  const std::string name(600, 'x');
  heartbeat.where({.phase = "send", .name = name});
  EXPECT_EQ(read(0).place, "send: " + std::string(508, 'x'));
}

TEST_F(HeartbeatTest, TheFirstFailureCounts) {
  Heartbeat heartbeat(2);
  heartbeat.fail(std::string(2000, 'y'), 2, 1);
  heartbeat.fail("later");
  heartbeat.finish();
  const BeatReading reading = read(2);
  EXPECT_EQ(reading.state, RankState::kFailed);
  EXPECT_EQ(reading.failure, std::string(1024, 'y'));
  EXPECT_EQ(reading.failure_code, 2);
  EXPECT_EQ(reading.blames, 1);
  EXPECT_GT(reading.failure_ns, 0);
}

TEST_F(HeartbeatTest, BeatsWithoutBeingAsked) {
  std::optional<Heartbeat> heartbeat(std::in_place, 0);
  const std::uint64_t before = read(0).beats;
  for (int i = 0; i < 500 && read(0).beats < before + 2; ++i) ::usleep(10'000);
  EXPECT_GE(read(0).beats, before + 2);
  heartbeat.reset();
  const std::uint64_t last = read(0).beats;
  ::usleep(600'000);
  EXPECT_EQ(read(0).beats, last);
}

TEST_F(HeartbeatTest, PlacesAreReadWholeOrKnownToBeTorn) {
  Heartbeat heartbeat(0);
  std::atomic<bool> end = false;
  std::thread writer([&] {
    const std::string a(300, 'a'), b(200, 'b');
    for (int i = 0; !end; ++i) {
      if (i % 2 == 0) {
        heartbeat.where({.step = 1, .name = a});
      } else {
        heartbeat.where({.step = 2, .name = b});
      }
      // As a rank does between two instructions: a reader gets its turn.
      for (int spin = 0; spin < 200; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  });
  const std::string first = "step 1: " + std::string(300, 'a');
  const std::string second = "step 2: " + std::string(200, 'b');
  int torn = 0, whole = 0;
  const auto start = std::chrono::steady_clock::now();
  while (whole < 20000 && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    const BeatReading reading = read(0);
    if (reading.torn || reading.place.empty()) continue;
    ++whole;
    if (reading.place != first && reading.place != second) ++torn;
  }
  end = true;
  writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(whole, 100);
}

TEST_F(HeartbeatTest, AllRanksStopAfterTheSameStep) {
  std::vector<std::int64_t> last(3, -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Heartbeat heartbeat(rank);
      for (std::int64_t step = 0; heartbeat.begin_step(step); ++step) {
        last[static_cast<std::size_t>(rank)] = step;
        ::usleep(static_cast<useconds_t>(500 * (rank + 1)));
      }
    });
  }
  ::usleep(50'000);
  map_.header().gate.fetch_or(BeatHeader::kStop);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(last[0], 1);
  EXPECT_EQ(last[1], last[0]);
  EXPECT_EQ(last[2], last[0]);
  Heartbeat late(0);
  EXPECT_FALSE(late.begin_step(last[0] + 1));
}

TEST_F(HeartbeatTest, WithoutASupervisorNothingHappens) {
  ::unsetenv(kBeatsVariable);
  Heartbeat heartbeat(12345);
  EXPECT_FALSE(heartbeat.supervised());
  heartbeat.where({.step = 1});
  EXPECT_TRUE(heartbeat.begin_step(5));
  heartbeat.fail("unheard");
  heartbeat.finish();
}

TEST_F(HeartbeatTest, WhatIsNoHeartbeatFileIsRefused) {
  EXPECT_EQ(error_of(3), "MESHWRIGHT_BEATS: rank 3 has no heartbeat among 3 ranks");
  EXPECT_THAT(error_of(-1), HasSubstr("rank -1"));
  for (const char* text : {"x", "-1", "3 ", "99999999999999999999"}) {
    ::setenv(kBeatsVariable, text, 1);
    EXPECT_THAT(error_of(0), StartsWith("MESHWRIGHT_BEATS: must be the number of an open file"));
  }
  ::setenv(kBeatsVariable, "1000000", 1);
  EXPECT_THAT(error_of(0), HasSubstr("file descriptor 1000000 is no heartbeat file"));
  FILE* other = std::tmpfile();
  ASSERT_EQ(::ftruncate(::fileno(other), 1 << 16), 0);
  ::setenv(kBeatsVariable, std::to_string(::fileno(other)).c_str(), 1);
  EXPECT_THAT(error_of(0), HasSubstr("holds no heartbeats of this version"));
  std::fclose(other);
}

TEST_F(HeartbeatTest, NonsenseInASlotIsReadWithoutHarm) {
  BeatSlot& slot = map_.slot(0);
  slot.state.store(99);
  slot.sequence.store(7);
  slot.phase_bytes.store(4'000'000'000u);
  slot.kind_bytes.store(4'000'000'000u);
  slot.name_bytes.store(4'000'000'000u);
  slot.failure_bytes.store(4'000'000'000u);
  for (auto& word : slot.place) word.store(~0ull);
  const BeatReading reading = read(0);
  EXPECT_EQ(reading.state, RankState::kFailed);
  EXPECT_LE(reading.place.size(), 600u);
  EXPECT_LE(reading.failure.size(), 1024u);
}

}  // namespace
}  // namespace meshwright
