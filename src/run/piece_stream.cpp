#include "run/piece_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "run/crc32.h"

namespace meshwright {
namespace {

constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::size_t kLeastAhead = 4 << 10;   // After a wide gap.
constexpr std::int64_t kNarrowGap = 16 << 10;  // Is copied sooner than a call returns.

}  // namespace

OpenFile::OpenFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail();
}

OpenFile::~OpenFile() { ::close(file_); }

void OpenFile::read(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto got = ::pread(file_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail();
    if (got == 0) throw Error("was cut short while it was read", path_.string());
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void OpenFile::fail() const {
  throw Error(fmt::format("cannot be read: {}", std::strerror(errno)), path_.string());
}

PieceStream::PieceStream(const OpenFile& file, const StoredPiece& piece, bool check,
                         std::vector<std::byte>& buffer)
    : file_(file), piece_(piece), check_(check), buffer_(buffer), ahead_(kLeastAhead) {
  buffer_.resize(kChunkBytes);
}

void PieceStream::copy(std::int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    if (offset < end_) {
      const auto n = std::min(out.size(), static_cast<std::size_t>(end_ - offset));
      std::memcpy(out.data(), buffer_.data() + (offset - begin_), n);
      offset += static_cast<std::int64_t>(n);
      out = out.subspan(n);
      continue;
    }
    if (!check_) {
      // The longer the bytes lie close together, the more are read at once.
      ahead_ = offset - end_ <= kNarrowGap ? std::min(2 * ahead_, kChunkBytes) : kLeastAhead;
      begin_ = end_ = offset;
    }
    if (offset == end_ && out.size() >= kChunkBytes) {
      take(out.first(kChunkBytes));
      begin_ = end_;
      offset = end_;
      out = out.subspan(kChunkBytes);
    } else {
      fill();
    }
  }
}

std::uint32_t PieceStream::finish() {
  while (end_ < piece_.bytes) fill();
  return crc_;
}

void PieceStream::take(std::span<std::byte> out) {
  file_.read(piece_.offset + end_, out);
  if (check_) crc_ = crc32(crc_, out);
  end_ += static_cast<std::int64_t>(out.size());
}

void PieceStream::fill() {
  begin_ = end_;
  const auto most = static_cast<std::int64_t>(check_ ? kChunkBytes : ahead_);
  take(std::span(buffer_).first(static_cast<std::size_t>(std::min(most, piece_.bytes - end_))));
}

}  // namespace meshwright
