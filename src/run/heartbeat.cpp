#include "run/heartbeat.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr auto kBeatInterval = std::chrono::milliseconds(250);

int file_descriptor(std::string_view text) {
  int fd = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd);
  if (error != std::errc() || end != text.data() + text.size() || fd < 0) {
    throw Error(fmt::format("must be the number of an open file: {}", in_quotes(text)),
                kBeatsVariable, "'meshwright run' sets this variable; unset it");
  }
  return fd;
}

// Copies texts one behind the other, eight bytes at a time.
class WordWriter {
 public:
  WordWriter(std::atomic<std::uint64_t>* words, std::size_t bytes) : words_(words), left_(bytes) {}

  std::uint32_t add(std::string_view text) {
    text = text.substr(0, left_);
    left_ -= text.size();
    const auto written = static_cast<std::uint32_t>(text.size());
    while (!text.empty()) {
      const std::size_t count = std::min<std::size_t>(text.size(), 8 - used_);
      std::memcpy(reinterpret_cast<char*>(&word_) + used_, text.data(), count);
      used_ += count;
      text.remove_prefix(count);
      if (used_ == 8) flush();
    }
    return written;
  }
  void flush() {
    if (used_ == 0) return;
    (words_++)->store(word_, std::memory_order_release);
    word_ = 0;
    used_ = 0;
  }

 private:
  std::atomic<std::uint64_t>* words_;
  std::size_t left_;
  std::uint64_t word_ = 0;
  std::size_t used_ = 0;
};

}  // namespace

Heartbeat::Heartbeat(int rank) {
  const char* text = std::getenv(kBeatsVariable);
  if (text == nullptr || *text == '\0') return;
  const int fd = file_descriptor(text);
  map_ = BeatMap::attach(fd);
  if (rank < 0 || rank >= map_.ranks()) {
    throw Error(fmt::format("rank {} has no heartbeat among {} ranks", rank, map_.ranks()),
                kBeatsVariable);
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  slot_ = &map_.slot(rank);
  beat();
  slot_->state.store(static_cast<std::uint32_t>(RankState::kStarting), std::memory_order_release);
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kBeatInterval, [this] { return end_; })) beat();
  });
}

Heartbeat::~Heartbeat() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
  beat();
}

void Heartbeat::beat() noexcept {
  slot_->beat_ns.store(monotonic_ns(), std::memory_order_relaxed);
  slot_->beats.fetch_add(1, std::memory_order_relaxed);
}

void Heartbeat::where(const Place& place) noexcept {
  if (slot_ == nullptr) return;
  BeatSlot& slot = *slot_;
  // Release stores keep the odd number in front of the words, and the words in front of the even.
  const std::uint64_t sequence = slot.sequence.load(std::memory_order_relaxed) | 1;
  slot.sequence.store(sequence, std::memory_order_relaxed);
  slot.step.store(place.step, std::memory_order_release);
  slot.chunk.store(place.chunk, std::memory_order_release);
  slot.micro_batch.store(place.micro_batch, std::memory_order_release);
  slot.instruction.store(place.instruction, std::memory_order_release);
  WordWriter writer(slot.place.data(), BeatSlot::kPlaceBytes);
  slot.phase_bytes.store(writer.add(place.phase), std::memory_order_release);
  slot.kind_bytes.store(writer.add(place.kind), std::memory_order_release);
  slot.name_bytes.store(writer.add(place.name), std::memory_order_release);
  writer.flush();
  slot.sequence.store(sequence + 1, std::memory_order_release);
  if (running_) return;
  running_ = true;
  auto starting = static_cast<std::uint32_t>(RankState::kStarting);
  slot.state.compare_exchange_strong(starting, static_cast<std::uint32_t>(RankState::kRunning));
}

bool Heartbeat::begin_step(std::int64_t step) noexcept {
  if (slot_ == nullptr) return true;
  slot_->at_gate.store(1, std::memory_order_relaxed);
  const std::uint64_t begun = static_cast<std::uint64_t>(std::max<std::int64_t>(step, 0)) + 1;
  std::atomic<std::uint64_t>& gate = map_.header().gate;
  std::uint64_t seen = gate.load();
  while ((seen & ~BeatHeader::kStop) < begun) {
    if ((seen & BeatHeader::kStop) != 0) return false;
    if (gate.compare_exchange_weak(seen, begun)) break;
  }
  return true;
}

void Heartbeat::fail(std::string_view message, int exit_code, int blamed) noexcept {
  if (slot_ == nullptr || slot_->failing.exchange(1) != 0) return;
  slot_->failure_ns.store(monotonic_ns(), std::memory_order_relaxed);
  slot_->failure_code.store(exit_code, std::memory_order_relaxed);
  slot_->failure_blames.store(blamed, std::memory_order_relaxed);
  WordWriter writer(slot_->failure.data(), BeatSlot::kFailureBytes);
  slot_->failure_bytes.store(writer.add(message), std::memory_order_relaxed);
  writer.flush();
  slot_->state.store(static_cast<std::uint32_t>(RankState::kFailed), std::memory_order_release);
}

void Heartbeat::finish() noexcept {
  if (slot_ == nullptr || slot_->failing.load() != 0) return;
  slot_->state.store(static_cast<std::uint32_t>(RankState::kFinished), std::memory_order_release);
}

}  // namespace meshwright
