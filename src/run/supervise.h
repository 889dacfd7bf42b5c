#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace meshwright {

/// The program that every rank runs, told apart by its environment.
struct RankCommand {
  std::string program;  ///< A path, or a name to be found in PATH.
  std::vector<std::string> arguments;
};

struct SuperviseOptions {
  int ranks = 1;                             ///< 1..1024
  std::string master_address = "127.0.0.1";  ///< Handed on as MASTER_ADDR.
  int master_port = 0;                       ///< 0 = a free one.
  bool pin = true;  ///< Rank r to the r-th core that this process may use, round and round.
  int beat_limit_ms = 5000;    ///< A rank that is silent for as long is taken for hung.
  int start_limit_ms = 60000;  ///< The same until its first beat, unless it is stopped by a signal.
  int progress_limit_ms = 300000;  ///< All beat and none gets on: deadlock.
  int grace_ms = 1000;             ///< From SIGTERM to SIGKILL after a fault.
  int interrupt_grace_ms = 10000;  ///< For the ranks to end by themselves when interrupted.
  int output = 1;  ///< The descriptor that is rank 0's stdout (the others' is dropped).
  const std::atomic<bool>* stop = nullptr;      ///< Set by Ctrl-C: end after the step under way.
  const std::atomic<bool>* stop_now = nullptr;  ///< Set by the second: kill at once.
  /// Told where rank 0 is ("" = still starting), some times a second.
  std::function<void(const std::string& place)> progress;
};

struct RunEnd {
  bool ok = false;
  bool interrupted = false;
  int culprit = -1;     ///< The rank at fault; -1 = none, or all.
  std::string message;  ///< One line: who, what, where. Empty when ok.
  /// 0, 1 (failed; or, when ok, the answer of a rank that had finished its work), 2 (the user's
  /// error), 70 (a bug), 130 (interrupted).
  int exit_code = 0;
  double seconds = 0;
  std::vector<std::string> errors;  ///< By rank, the last 4 KiB of stderr.
};

/// Runs `options.ranks` processes of `command` to their end. They get RANK, LOCAL_RANK, WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT, MESHWRIGHT_BEATS (see Heartbeat) and one thread each; the port stays
/// reserved until a server with SO_REUSEADDR listens on it. When a rank is killed, exits non-zero,
/// fails by its own word or falls silent, all others are stopped (SIGTERM, then SIGKILL) and the
/// message names that rank, not those that waited for it. Nothing outlives the call, nor this
/// process if it is killed. Throws Error when the run cannot start: no such program, port in use,
/// no more processes.
RunEnd supervise(const RankCommand& command, const SuperviseOptions& options);

}  // namespace meshwright
