#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "run/checkpoint_index.h"

namespace meshwright {

/// A file that is read at offsets. Files of checkpoints are read and not mapped: a disk that fails,
/// or a file that is cut while it is read, is then an Error and no signal.
class OpenFile {
 public:
  explicit OpenFile(std::filesystem::path path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  /// Throws Error placed at the file unless all of `out` is read.
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  int file_ = -1;
};

/// The bytes of one piece in ascending order. They pass once through a buffer that fits the
/// processor's cache, or straight to where they belong, and with `check` the checksum is computed
/// on the way; then all of them are read. Without it, what is not wanted is skipped.
class PieceStream {
 public:
  /// `buffer` is memory that streams share, one at a time.
  PieceStream(const OpenFile& file, const StoredPiece& piece, bool check,
              std::vector<std::byte>& buffer);
  /// `offset` in the piece, not before the end of the copy before.
  void copy(std::int64_t offset, std::span<std::byte> out);
  /// Reads the rest of the piece. The checksum of all of it.
  std::uint32_t finish();

 private:
  void take(std::span<std::byte> out);
  void fill();

  const OpenFile& file_;
  const StoredPiece& piece_;
  const bool check_;
  std::vector<std::byte>& buffer_;
  std::int64_t begin_ = 0, end_ = 0;  // Of the piece: what the buffer holds.
  std::size_t ahead_;
  std::uint32_t crc_ = 0;
};

}  // namespace meshwright
