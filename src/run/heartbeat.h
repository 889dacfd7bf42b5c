#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>

#include "run/beat_slots.h"

namespace meshwright {

/// Where a rank is, for the message when something goes wrong there (steps count from 1): "step 3,
/// forward of chunk 1, micro-batch 2, instruction 17: linear layers.1.mlp.up". -1 and empty = not
/// said. The texts are copied, 512 bytes of them at most.
struct Place {
  std::int64_t step = -1;
  std::string_view phase;
  int chunk = -1;
  int micro_batch = -1;
  int instruction = -1;
  std::string_view kind;
  std::string_view name;
};

/// A rank's side of supervision: tells the process that started it that it lives, where it is and
/// how it ended. A thread beats, so a long computation is no silence; a stopped process is. Without
/// a supervisor (MESHWRIGHT_BEATS unset, as under torchrun) everything here does nothing.
class Heartbeat {
 public:
  /// Starts to beat in `rank`'s slot. Throws Error when MESHWRIGHT_BEATS is set but is no heartbeat
  /// file with such a rank.
  explicit Heartbeat(int rank);
  /// Stops beating: from then on the process has the supervisor's beat limit to end.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  bool supervised() const { return slot_ != nullptr; }

  /// Cheap enough for every instruction: no system call, no lock. One thread only.
  void where(const Place& place) noexcept;

  /// May this rank begin `step` (from 0, rising)? False once the run is to stop early; all ranks
  /// then stop after the same step. A rank that asks gets no SIGTERM when the user interrupts.
  bool begin_step(std::int64_t step) noexcept;

  /// The rank cannot go on; it should exit with `exit_code` next. `blamed`: the rank whose loss
  /// this follows from (a broken connection), or -1; such a failure counts as a consequence when
  /// any rank has one of its own. Only the first failure is kept, 1 KiB of it. Any thread.
  void fail(std::string_view message, int exit_code = 1, int blamed = -1) noexcept;

  /// All work is done: exit code 0 without this is a fault, and 1 after it is none but an answer.
  void finish() noexcept;

 private:
  void beat() noexcept;

  BeatMap map_;
  BeatSlot* slot_ = nullptr;
  bool running_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace meshwright
