#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "run/checkpoint.h"

namespace meshwright {

/// The text files of a checkpoint. Parsing trusts nothing: what is returned is within bounds, and
/// the pieces of an index tile its data file from end to end.

/// A piece in a data file.
struct StoredPiece {
  std::string tensor, part;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  Box box;
  std::int64_t begin = 0, end = 0;
  std::int64_t offset = 0, bytes = 0;  ///< In the file.
  std::uint32_t crc32 = 0;
};

/// rank-0003.json: what rank-0003.bin holds.
struct RankIndex {
  CheckpointInfo info;
  int rank = 0, ranks = 1;
  std::int64_t data_bytes = 0;  ///< Size of the data file, its head included.
  std::vector<StoredPiece> pieces;
};

/// The files of a rank.
struct RankFiles {
  std::int64_t index_bytes = 0;
  std::uint32_t index_crc32 = 0;
  std::int64_t data_bytes = 0;
};

/// manifest.json: a folder with this file is a completed checkpoint.
struct Manifest {
  CheckpointInfo info;
  std::vector<RankFiles> files;  ///< By rank.
};

inline constexpr std::int64_t kMaxStep = 999'999'999'999;
inline constexpr int kMaxRanks = 1'000'000;
inline constexpr std::int64_t kDataHeadBytes = 96;

/// The first bytes of a data file: format, run, step and rank in one line.
std::string data_head(const CheckpointInfo& info, int rank);
/// The run in the head of a data file; empty when it is no such head.
std::string run_of_head(std::string_view head);
/// Whether the text is what draw_run_id returns.
bool is_run_id(std::string_view text);

/// Texts end with a checksum of themselves. Printing throws Error for text that is not UTF-8 or too
/// large.
std::string print_index(const RankIndex& index);
std::string print_manifest(const Manifest& manifest);
/// Throw Error placed at `source` for every changed, missing or added byte.
RankIndex parse_index(std::string_view text, std::string_view source);
Manifest parse_manifest(std::string_view text, std::string_view source);
/// The same of JSON whose checksum is not looked at.
RankIndex index_from_json(const Json& json, std::string_view source);
Manifest manifest_from_json(const Json& json, std::string_view source);

/// "[0:4, 8:16] elements 0..32": for messages.
std::string region_text(const Box& box, std::int64_t begin, std::int64_t end);
/// Elements of a box; -1 when they are more than 2^60.
std::int64_t box_elements(const Box& box);

}  // namespace meshwright
