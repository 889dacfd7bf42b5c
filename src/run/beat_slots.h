#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright {

// The memory that a supervisor shares with its ranks: a header and one slot per rank, in a file
// that has no name. Every word is atomic, so a rank that dies between two words leaves a torn text
// at worst. Readers trust nothing: a rank may have written anything anywhere.

enum class RankState : std::uint32_t {
  kAbsent,    ///< Not at its slot yet: being loaded, or a program that does not beat.
  kStarting,  ///< Beats; has not said where it is.
  kRunning,
  kFinished,
  kFailed,  ///< By its own word.
};

struct BeatSlot {
  static constexpr std::size_t kPlaceBytes = 512;
  static constexpr std::size_t kFailureBytes = 1024;

  alignas(64) std::atomic<std::uint64_t> beats;
  std::atomic<std::int64_t> beat_ns;  ///< CLOCK_MONOTONIC of the last beat.
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> at_gate;  ///< 1 once the rank asks before each step.

  /// Guards the place (a seqlock: odd while it is written); half of it counts the places so far.
  alignas(64) std::atomic<std::uint64_t> sequence;
  std::atomic<std::int64_t> step;
  std::atomic<std::int32_t> chunk, micro_batch, instruction;
  std::atomic<std::uint32_t> phase_bytes, kind_bytes, name_bytes;
  std::array<std::atomic<std::uint64_t>, kPlaceBytes / 8> place;

  alignas(64) std::atomic<std::uint32_t> failing;  ///< The first to set it writes the failure.
  std::atomic<std::int32_t> failure_code, failure_blames;
  std::atomic<std::int64_t> failure_ns;
  std::atomic<std::uint32_t> failure_bytes;
  std::array<std::atomic<std::uint64_t>, kFailureBytes / 8> failure;
};

struct BeatHeader {
  static constexpr std::uint64_t kMagic = 0x31746165622d776d;  // "mw-beat1"
  static constexpr std::uint64_t kStop = 1ull << 63;

  std::uint64_t magic;
  std::int32_t ranks;
  /// The number of steps that some rank has begun; kStop is set when no further one may begin.
  /// Being one word, it lets all ranks end after the same step.
  alignas(64) std::atomic<std::uint64_t> gate;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr const char* kBeatsVariable = "MESHWRIGHT_BEATS";

/// The file mapped into this process.
class BeatMap {
 public:
  BeatMap() = default;
  /// A new file of `ranks` slots. Throws Error when the system has no memory for it.
  static BeatMap create(int ranks);
  /// The file open as `fd`, which some other process made. Throws Error when it is none.
  static BeatMap attach(int fd);
  BeatMap(BeatMap&& other) noexcept;
  BeatMap& operator=(BeatMap&& other) noexcept;
  ~BeatMap();

  explicit operator bool() const { return memory_ != nullptr; }
  int ranks() const { return ranks_; }
  int fd() const { return fd_; }
  BeatHeader& header() const { return *static_cast<BeatHeader*>(memory_); }
  BeatSlot& slot(int rank) const;

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  int ranks_ = 0;
  int fd_ = -1;
};

/// What a slot says, as text for a message.
struct BeatReading {
  RankState state = RankState::kAbsent;
  std::uint64_t beats = 0;
  std::uint64_t places = 0;  ///< How often the rank has said where it is.
  bool at_gate = false;
  std::string place;    ///< "step 3, forward of chunk 1, …: linear up"; empty = not said.
  bool torn = false;    ///< It was being written all the while: parts of two places.
  std::string failure;  ///< Of kFailed.
  int failure_code = 1;
  int blames = -1;  ///< The rank that a failure is blamed on; -1 = none.
  std::int64_t failure_ns = 0;
};

/// Counters and state alone, without texts.
BeatReading read_beats(const BeatSlot& slot);
/// All of it. Waits 5 ms at most for a place that is being written.
BeatReading read_slot(const BeatSlot& slot);

/// `text` on one line: control characters become spaces, at most `limit` bytes.
std::string one_line(std::string_view text, std::size_t limit);

/// CLOCK_MONOTONIC, the same for all processes of a machine.
std::int64_t monotonic_ns();

}  // namespace meshwright
