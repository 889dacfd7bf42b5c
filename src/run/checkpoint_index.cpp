#include "run/checkpoint_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/spelling.h"
#include "run/crc32.h"

namespace meshwright {
namespace {

constexpr std::string_view kManifestFormat = "meshwright-checkpoint";
constexpr std::string_view kIndexFormat = "meshwright-checkpoint-index";
constexpr std::string_view kHeadBegin = "meshwright checkpoint data 1 run=";
constexpr std::string_view kSealBegin = ",\n\"crc32\":\"";
constexpr std::string_view kSealEnd = "\"}\n";
constexpr std::size_t kSealBytes = kSealBegin.size() + 8 + kSealEnd.size();
constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;
constexpr std::size_t kMaxDims = 16;
constexpr std::size_t kMaxNameBytes = 4096;
constexpr std::size_t kMaxInfoBytes = 1 << 20;
constexpr std::size_t kMaxTextBytes = 64 << 20;  // parse_json's own limit.

std::string hex(std::uint32_t value) { return fmt::format("{:08x}", value); }

// ---- printing

std::string seal(std::string text) {
  MW_CHECK(!text.empty() && text.back() == '}', "only an object is sealed");
  text.pop_back();
  const std::uint32_t crc = crc32(0, std::as_bytes(std::span(text)));
  text += fmt::format("{}{}{}", kSealBegin, hex(crc), kSealEnd);
  if (text.size() > kMaxTextBytes) {
    throw Error("the list of a checkpoint's pieces is larger than 64 MiB", {},
                "write fewer and larger pieces per rank");
  }
  return text;
}

std::string dump(const Json& json) {
  try {
    return json.dump();
  } catch (const Json::type_error&) {
    throw Error("a name or text of a checkpoint is not valid UTF-8");
  }
}

Json head_json(std::string_view format, const CheckpointInfo& info) {
  return {{"format", format},    {"version", 1},      {"run", info.run},    {"step", info.step},
          {"graph", info.graph}, {"plan", info.plan}, {"extra", info.extra}};
}

std::string with_list(const Json& head, std::string_view name,
                      const std::vector<std::string>& rows) {
  std::string text = dump(head);
  text.pop_back();
  text += fmt::format(",\n\"{}\":[", name);
  for (std::size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "\n" : ",\n") + rows[i];
  return text + "]}";
}

// ---- parsing

[[noreturn]] void fail(std::string_view source, std::string message) {
  throw Error(std::move(message), std::string(source));
}

std::string_view unseal(std::string_view text, std::string_view source) {
  const auto cut = [&] { fail(source, "is damaged: it does not end with its checksum"); };
  if (text.size() < kSealBytes) cut();
  const std::string_view body = text.substr(0, text.size() - kSealBytes);
  std::string_view end = text.substr(body.size());
  if (!end.starts_with(kSealBegin) || !end.ends_with(kSealEnd)) cut();
  const std::string_view stored = end.substr(kSealBegin.size(), 8);
  const std::string found = hex(crc32(0, std::as_bytes(std::span(body))));
  if (stored != found) {
    fail(source, fmt::format("is damaged: its checksum is {}, and {} was written", found,
                             in_quotes(stored)));
  }
  return text;
}

const Json& field(const Json& object, const char* key, std::string_view source) {
  if (!object.is_object()) fail(source, "must be an object");
  const auto it = object.find(key);
  if (it == object.end()) fail(source, fmt::format("lacks '{}'", key));
  return *it;
}

std::int64_t integer(const Json& json, std::int64_t low, std::int64_t high, const char* what,
                     std::string_view source) {
  std::int64_t value = -1;
  bool fits = json.is_number_integer();
  if (fits && json.is_number_unsigned()) {
    const auto wide = json.get<std::uint64_t>();
    fits = wide <= static_cast<std::uint64_t>(INT64_MAX);
    value = static_cast<std::int64_t>(wide);
  } else if (fits) {
    value = json.get<std::int64_t>();
  }
  if (!fits || value < low || value > high) {
    fail(source, fmt::format("'{}' must be an integer from {} to {}", what, low, high));
  }
  return value;
}

std::string text_of(const Json& json, std::size_t most, const char* what, std::string_view source) {
  if (!json.is_string()) fail(source, fmt::format("'{}' must be a string", what));
  const auto& text = json.get_ref<const std::string&>();
  if (text.size() > most) {
    fail(source, fmt::format("'{}' is of {} bytes, more than {}", what, text.size(), most));
  }
  return text;
}

std::uint32_t crc_of(const Json& json, std::string_view source) {
  const std::string text = text_of(json, 8, "crc32", source);
  std::uint32_t value = 0;
  bool good = text.size() == 8;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    good = good && (digit || letter);
    value = value * 16 + static_cast<std::uint32_t>(digit ? c - '0' : c - 'a' + 10);
  }
  if (!good) fail(source, "'crc32' must be 8 hexadecimal digits");
  return value;
}

const Json& list(const Json& json, const char* what, std::string_view source) {
  if (!json.is_array()) fail(source, fmt::format("'{}' must be a list", what));
  return json;
}

Interval interval(const Json& json, std::int64_t most, const char* what, std::string_view source) {
  if (list(json, what, source).size() != 2) {
    fail(source, fmt::format("'{}' must be [begin, end]", what));
  }
  const std::int64_t begin = integer(json[0], 0, most, what, source);
  return {begin, integer(json[1], begin, most, what, source)};
}

CheckpointInfo info_of(const Json& json, std::string_view format, std::string_view source) {
  if (text_of(field(json, "format", source), kMaxNameBytes, "format", source) != format) {
    fail(source, fmt::format("'format' must be '{}'", format));
  }
  integer(field(json, "version", source), 1, 1, "version", source);
  CheckpointInfo info;
  info.step = integer(field(json, "step", source), 0, kMaxStep, "step", source);
  info.run = text_of(field(json, "run", source), 16, "run", source);
  if (!is_run_id(info.run)) fail(source, "'run' must be 16 hexadecimal digits");
  info.graph = text_of(field(json, "graph", source), kMaxNameBytes, "graph", source);
  info.plan = text_of(field(json, "plan", source), kMaxInfoBytes, "plan", source);
  info.extra = text_of(field(json, "extra", source), kMaxInfoBytes, "extra", source);
  return info;
}

StoredPiece piece_of(const Json& json, std::string_view source) {
  StoredPiece piece;
  piece.tensor = text_of(field(json, "tensor", source), kMaxNameBytes, "tensor", source);
  piece.part = text_of(field(json, "part", source), kMaxNameBytes, "part", source);
  try {
    piece.dtype = parse_dtype(text_of(field(json, "dtype", source), 16, "dtype", source));
  } catch (const Error& e) {
    throw e.where().empty() ? e.within(source) : e;
  }
  const Json& shape = list(field(json, "shape", source), "shape", source);
  const Json& box = list(field(json, "box", source), "box", source);
  if (shape.size() > kMaxDims) fail(source, "'shape' has more than 16 dimensions");
  if (box.size() != shape.size()) fail(source, "'box' and 'shape' differ in their dimensions");
  Box whole;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    piece.shape.push_back(integer(shape[d], 0, kMaxElements, "shape", source));
    piece.box.push_back(interval(box[d], piece.shape[d], "box", source));
    whole.push_back({0, piece.shape[d]});
  }
  const std::int64_t elements = box_elements(piece.box);
  if (box_elements(whole) < 0 || elements < 0) fail(source, "'shape' has more than 2^60 elements");
  const Interval range = interval(field(json, "range", source), elements, "range", source);
  piece.begin = range.begin;
  piece.end = range.end;
  piece.bytes = range.size();
  if (__builtin_mul_overflow(piece.bytes, std::int64_t{dtype_bytes(piece.dtype)}, &piece.bytes)) {
    fail(source, "'range' has too many bytes");
  }
  piece.offset = integer(field(json, "offset", source), 0, INT64_MAX, "offset", source);
  piece.crc32 = crc_of(field(json, "crc32", source), source);
  return piece;
}

}  // namespace

bool is_run_id(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string data_head(const CheckpointInfo& info, int rank) {
  std::string head =
      fmt::format("{}{} step={:012} rank={:07}", kHeadBegin, info.run, info.step, rank);
  MW_CHECK(head.size() < static_cast<std::size_t>(kDataHeadBytes), "the head does not fit");
  head.resize(static_cast<std::size_t>(kDataHeadBytes - 1), ' ');
  return head + "\n";
}

std::string run_of_head(std::string_view head) {
  if (!head.starts_with(kHeadBegin)) return {};
  const std::string run(head.substr(kHeadBegin.size(), 16));
  return is_run_id(run) ? run : std::string();
}

std::string print_index(const RankIndex& index) {
  Json head = head_json(kIndexFormat, index.info);
  head["rank"] = index.rank;
  head["ranks"] = index.ranks;
  head["data_bytes"] = index.data_bytes;
  std::vector<std::string> rows;
  rows.reserve(index.pieces.size());
  for (const StoredPiece& piece : index.pieces) {
    Json box = Json::array();
    for (const Interval& i : piece.box) box.push_back({i.begin, i.end});
    rows.push_back(dump({{"tensor", piece.tensor},
                         {"part", piece.part},
                         {"dtype", dtype_name(piece.dtype)},
                         {"shape", piece.shape},
                         {"box", box},
                         {"range", {piece.begin, piece.end}},
                         {"offset", piece.offset},
                         {"crc32", hex(piece.crc32)}}));
  }
  return seal(with_list(head, "pieces", rows));
}

std::string print_manifest(const Manifest& manifest) {
  std::vector<std::string> rows;
  for (const RankFiles& files : manifest.files) {
    rows.push_back(dump({{"index_bytes", files.index_bytes},
                         {"index_crc32", hex(files.index_crc32)},
                         {"data_bytes", files.data_bytes}}));
  }
  return seal(with_list(head_json(kManifestFormat, manifest.info), "ranks", rows));
}

RankIndex index_from_json(const Json& json, std::string_view source) {
  RankIndex index;
  index.info = info_of(json, kIndexFormat, source);
  index.ranks =
      static_cast<int>(integer(field(json, "ranks", source), 1, kMaxRanks, "ranks", source));
  index.rank =
      static_cast<int>(integer(field(json, "rank", source), 0, index.ranks - 1, "rank", source));
  index.data_bytes =
      integer(field(json, "data_bytes", source), kDataHeadBytes, INT64_MAX, "data_bytes", source);
  std::int64_t offset = kDataHeadBytes;
  const Json& pieces = list(field(json, "pieces", source), "pieces", source);
  index.pieces.reserve(pieces.size());
  for (const Json& row : pieces) {
    try {
      index.pieces.push_back(piece_of(row, source));
    } catch (const Error& e) {
      throw Error(fmt::format("piece {}: {}", index.pieces.size(), e.message()), e.where(),
                  e.hint());
    }
    const StoredPiece& piece = index.pieces.back();
    if (piece.offset != offset || piece.bytes > index.data_bytes - offset) {
      fail(source,
           fmt::format("piece {}: lies at byte {} with {} bytes, but the piece before ends at byte "
                       "{} and the data file at {}",
                       index.pieces.size() - 1, piece.offset, piece.bytes, offset,
                       index.data_bytes));
    }
    offset += piece.bytes;
  }
  if (offset != index.data_bytes) {
    fail(source, fmt::format("the pieces end at byte {}, and the data file at {}", offset,
                             index.data_bytes));
  }
  return index;
}

Manifest manifest_from_json(const Json& json, std::string_view source) {
  Manifest manifest;
  manifest.info = info_of(json, kManifestFormat, source);
  const Json& ranks = list(field(json, "ranks", source), "ranks", source);
  if (ranks.empty() || ranks.size() > static_cast<std::size_t>(kMaxRanks)) {
    fail(source, fmt::format("'ranks' must list 1 to {} ranks", kMaxRanks));
  }
  for (const Json& row : ranks) {
    RankFiles files;
    files.index_bytes =
        integer(field(row, "index_bytes", source), 1, kMaxTextBytes, "index_bytes", source);
    files.index_crc32 = crc_of(field(row, "index_crc32", source), source);
    files.data_bytes =
        integer(field(row, "data_bytes", source), kDataHeadBytes, INT64_MAX, "data_bytes", source);
    manifest.files.push_back(files);
  }
  return manifest;
}

RankIndex parse_index(std::string_view text, std::string_view source) {
  return index_from_json(parse_json(unseal(text, source), source), source);
}

Manifest parse_manifest(std::string_view text, std::string_view source) {
  return manifest_from_json(parse_json(unseal(text, source), source), source);
}

std::string region_text(const Box& box, std::int64_t begin, std::int64_t end) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.size(); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box[d].begin, box[d].end);
  }
  return text + fmt::format("] elements {}..{}", begin, end);
}

std::int64_t box_elements(const Box& box) {
  std::int64_t product = 1;
  for (const Interval& i : box) {
    if (i.empty()) return 0;
  }
  for (const Interval& i : box) {
    if (__builtin_mul_overflow(product, i.size(), &product) || product > kMaxElements) return -1;
  }
  return product;
}

}  // namespace meshwright
