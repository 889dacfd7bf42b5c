#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/run_store.h"

namespace meshwright {

struct WatchdogTimes {
  std::chrono::milliseconds beat{1000};   ///< Between two signs of life.
  std::chrono::milliseconds limit{6000};  ///< Without one a rank is taken for lost.
};

/// For ranks that nobody supervises (torchrun, Slurm). A thread says every `beat` that this rank
/// lives and where it is, and looks whether others do; times are compared on this rank's clock
/// only. When a rank is lost (killed, stopped, cut off) or has failed, prints one line to stderr,
/// who and where, and ends this process with status 3: on all ranks within `limit` + 3 beats, also
/// when rank 0 goes, which serves the store. Every rank watches the 8 after it and rank 0, so that
/// the store's work grows with the number of ranks only; what one finds, all read.
class Watchdog {
 public:
  /// `where` is called from another thread: "step 3, forward of micro-batch 2". All ranks start
  /// theirs at about the same time, after they have met. Also sets std::terminate to print one line
  /// and end with status 3.
  Watchdog(const RunStore& store, std::function<std::string()> where, WatchdogTimes times = {});
  /// Without `finish` or `fail` before it, others take this rank for lost.
  ~Watchdog();

  /// This rank has done all it had to. Rank 0 waits for all others, which need its store.
  void finish();

  /// This rank has failed; all others end and say so within 2 beats. `lost`: the rank whose loss it
  /// noticed, if that is the reason. Returns why the run ends: this, or what another said before.
  std::string fail(const std::string& message, std::optional<int> lost = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace meshwright
