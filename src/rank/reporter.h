#pragma once

#include <csignal>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/executor.h"
#include "rank/timeline.h"
#include "run/heartbeat.h"

namespace meshwright {

/// For tests: a signal that a rank sends itself at a place of its program.
struct TestFault {
  int rank = 0;
  std::int64_t step = 1;  ///< Counted from 1, as messages count.
  int place = 0;          ///< The how-manieth that the step comes to, from 0; -1 = its checkpoint.
  int signal = SIGKILL;
  int restart = 0;  ///< Only after as many restarts of the run.
};

/// Reads MESHWRIGHT_TEST_FAULT: "rank:step:place:signal" or "rank:step:place:signal:restart",
/// several separated by commas; a place may be "checkpoint". Throws Error.
std::vector<TestFault> parse_test_faults(std::string_view text);

/// Tells the supervisor, or the watchdog, where this rank is.
class Reporter : public RunObserver {
 public:
  /// `timeline` may be null.
  Reporter(Heartbeat& heartbeat, RunTimeline* timeline, int rank);

  void begin(const RunPlace& place) override;
  void end(const RunPlace& place) override {
    if (timeline_ != nullptr) timeline_->end(place);
  }

  /// "step 3, forward of chunk 1, micro-batch 2, instruction 17: linear layers.1.mlp.up". Any
  /// thread.
  std::string where();

 private:
  void fault(const RunPlace& place);

  Heartbeat& heartbeat_;
  RunTimeline* timeline_;
  std::vector<TestFault> faults_;
  std::int64_t step_ = -1;
  int places_ = 0;  // Of the step, so far.
  std::mutex mutex_;
  RunPlace place_;
  std::string op_;
  std::string_view kind_;
};

}  // namespace meshwright
