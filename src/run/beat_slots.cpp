#include "run/beat_slots.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::size_t kHeaderBytes = (sizeof(BeatHeader) + 63) / 64 * 64;

std::size_t file_bytes(int ranks) {
  return kHeaderBytes + static_cast<std::size_t>(ranks) * sizeof(BeatSlot);
}

void* map(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

template <std::size_t N>
std::string text_of(const std::array<std::atomic<std::uint64_t>, N>& words, std::size_t bytes) {
  bytes = std::min(bytes, N * 8);
  std::string text(N * 8, '\0');
  for (std::size_t i = 0; i * 8 < bytes; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_acquire);
    std::memcpy(text.data() + i * 8, &word, 8);
  }
  text.resize(bytes);
  return text;
}

std::string place_text(const BeatSlot& slot) {
  const std::int64_t step = slot.step.load(std::memory_order_acquire);
  const int chunk = slot.chunk.load(std::memory_order_acquire);
  const int micro_batch = slot.micro_batch.load(std::memory_order_acquire);
  const int instruction = slot.instruction.load(std::memory_order_acquire);
  const std::size_t limit = BeatSlot::kPlaceBytes;
  const std::size_t phase_bytes =
      std::min<std::size_t>(slot.phase_bytes.load(std::memory_order_acquire), limit);
  const std::size_t kind_bytes =
      std::min<std::size_t>(slot.kind_bytes.load(std::memory_order_acquire), limit - phase_bytes);
  const std::size_t name_bytes = std::min<std::size_t>(
      slot.name_bytes.load(std::memory_order_acquire), limit - phase_bytes - kind_bytes);
  const std::string text = text_of(slot.place, phase_bytes + kind_bytes + name_bytes);
  const std::string phase = one_line(std::string_view(text).substr(0, phase_bytes), limit);
  const std::string kind = one_line(std::string_view(text).substr(phase_bytes, kind_bytes), limit);
  const std::string name = one_line(std::string_view(text).substr(phase_bytes + kind_bytes), limit);

  std::string place;
  const auto add = [&](std::string_view separator, const std::string& part) {
    if (part.empty()) return;
    if (!place.empty()) place += separator;
    place += part;
  };
  if (step >= 0) add(", ", fmt::format("step {}", step));
  add(", ", phase);
  if (chunk >= 0) add(phase.empty() ? ", " : " of ", fmt::format("chunk {}", chunk));
  if (micro_batch >= 0) add(", ", fmt::format("micro-batch {}", micro_batch));
  if (instruction >= 0) add(", ", fmt::format("instruction {}", instruction));
  add(": ", kind.empty() || name.empty() ? kind + name : kind + " " + name);
  return place;
}

}  // namespace

BeatMap BeatMap::create(int ranks) {
  BeatMap result;
  result.ranks_ = ranks;
  result.bytes_ = file_bytes(ranks);
  result.fd_ = ::memfd_create("meshwright-beats", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (result.fd_ < 0 || ::ftruncate(result.fd_, static_cast<off_t>(result.bytes_)) != 0 ||
      (result.memory_ = map(result.fd_, result.bytes_)) == nullptr) {
    throw Error(fmt::format("no shared memory for the heartbeats of {} ranks: {}", ranks,
                            std::strerror(errno)));
  }
  // A rank that shrinks the file would kill the supervisor with SIGBUS.
  ::fcntl(result.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  auto* header = new (result.memory_) BeatHeader;
  header->magic = BeatHeader::kMagic;
  header->ranks = ranks;
  header->gate = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    // The file is zero: absent, nothing said, nothing failed.
    static_assert(static_cast<int>(RankState::kAbsent) == 0);
    result.slot(rank).failure_blames.store(-1);
  }
  return result;
}

BeatMap BeatMap::attach(int fd) {
  struct stat status{};
  BeatMap result;
  if (::fstat(fd, &status) != 0 || status.st_size < static_cast<off_t>(file_bytes(1)) ||
      (result.memory_ = map(fd, static_cast<std::size_t>(status.st_size))) == nullptr) {
    throw Error(fmt::format("file descriptor {} is no heartbeat file", fd), kBeatsVariable,
                "'meshwright run' sets this variable for the ranks that it starts; unset it");
  }
  result.bytes_ = static_cast<std::size_t>(status.st_size);
  const BeatHeader& header = result.header();
  if (header.magic != BeatHeader::kMagic || header.ranks < 1 ||
      file_bytes(header.ranks) != result.bytes_) {
    throw Error(fmt::format("file descriptor {} holds no heartbeats of this version", fd),
                kBeatsVariable, "use the meshwright and meshwright-rank of one build");
  }
  result.ranks_ = header.ranks;
  return result;
}

BeatMap::BeatMap(BeatMap&& other) noexcept { *this = std::move(other); }

BeatMap& BeatMap::operator=(BeatMap&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(ranks_, other.ranks_);
  std::swap(fd_, other.fd_);
  return *this;
}

BeatMap::~BeatMap() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

BeatSlot& BeatMap::slot(int rank) const {
  MW_CHECK(rank >= 0 && rank < ranks_, "a slot for every rank");
  auto* first = reinterpret_cast<BeatSlot*>(static_cast<char*>(memory_) + kHeaderBytes);
  return first[rank];
}

BeatReading read_beats(const BeatSlot& slot) {
  BeatReading reading;
  const std::uint32_t state = slot.state.load(std::memory_order_acquire);
  reading.state =
      static_cast<RankState>(std::min(state, static_cast<std::uint32_t>(RankState::kFailed)));
  reading.beats = slot.beats.load(std::memory_order_relaxed);
  reading.places = slot.sequence.load(std::memory_order_relaxed) / 2;
  reading.at_gate = slot.at_gate.load(std::memory_order_relaxed) != 0;
  return reading;
}

BeatReading read_slot(const BeatSlot& slot) {
  BeatReading reading = read_beats(slot);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint64_t before = slot.sequence.load(std::memory_order_acquire);
    if (before == 0) break;
    reading.place = place_text(slot);
    reading.torn = before % 2 != 0 || slot.sequence.load(std::memory_order_relaxed) != before;
    if (!reading.torn) break;
    // The writer may want this core.
    if (attempt > 10) ::usleep(50);
  }
  if (reading.state == RankState::kFailed) {
    reading.failure =
        one_line(text_of(slot.failure, slot.failure_bytes.load(std::memory_order_acquire)),
                 BeatSlot::kFailureBytes);
    reading.failure_code = slot.failure_code.load(std::memory_order_acquire);
    reading.blames = slot.failure_blames.load(std::memory_order_acquire);
    reading.failure_ns = slot.failure_ns.load(std::memory_order_acquire);
  }
  return reading;
}

std::string one_line(std::string_view text, std::size_t limit) {
  std::string line;
  for (const char c : text.substr(0, limit)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (!control)
      line += c;
    else if (!line.empty() && line.back() != ' ')
      line += ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace meshwright
