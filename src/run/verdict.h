#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "run/beat_slots.h"

namespace meshwright {

/// What a supervisor knows of a rank.
struct RankView {
  BeatReading slot;
  std::optional<int> status;    ///< Its wait status, once it has ended.
  std::int64_t seen_ns = 0;     ///< When it was last looked at, or seen to have ended.
  double silent_ms = 0;         ///< Since its last beat, or its start.
  double silence_limit_ms = 0;  ///< From which on silence is a fault.
  bool stopped = false;         ///< By a signal (SIGSTOP), as the kernel says.
  bool terminated = false;      ///< The supervisor told it to end.
  std::string errors;           ///< The end of its stderr.
};

/// How much a rank's fault says about the cause. When one dies, those that talk to it fail too,
/// often within the same millisecond: what they say counts only when nobody has more to say.
enum class FaultWeight : std::uint8_t {
  kCause,        ///< Killed by a signal, or silent.
  kOwn,          ///< Failed or exited, and blames nobody: the earliest counts.
  kAborted,      ///< SIGABRT or SIGPIPE without a word: libraries do that when a peer is lost.
  kConsequence,  ///< Blames another rank.
};

struct Fault {
  int rank = -1;
  FaultWeight weight = FaultWeight::kOwn;
  std::int64_t ns = 0;  ///< When it failed, fell silent or was seen to have ended.
  std::string what;     ///< "was killed by signal 9 (SIGKILL)".
  int exit_code = 1;    ///< Of the run, if this is the cause.
};

/// Nothing while the rank runs, or when it has ended well.
std::optional<Fault> fault_of(int rank, const RankView& view);

/// The fault that the others follow from.
std::optional<Fault> root_fault(std::span<const RankView> ranks);

/// "rank 3 was killed by signal 9 (SIGKILL) at step 3, …": one line.
std::string fault_message(const Fault& fault, const RankView& view);

/// "rank 0 at step 3, …; rank 1 …": where all are that still run. At most 64 ranks are named.
std::string all_places(std::span<const RankView> ranks);

}  // namespace meshwright
