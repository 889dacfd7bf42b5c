// Indexes and manifests of checkpoints, with their checksum and, as no mutation would get past it,
// without.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "fuzz.h"
#include "run/checkpoint_index.h"

namespace meshwright {
namespace {

void check_index(const RankIndex& index) {
  std::int64_t offset = kDataHeadBytes;
  for (const StoredPiece& piece : index.pieces) {
    MW_CHECK(piece.offset == offset && piece.bytes >= 0, "the pieces do not tile the data file");
    MW_CHECK(piece.end <= box_elements(piece.box), "a piece is larger than its region");
    offset += piece.bytes;
  }
  MW_CHECK(offset == index.data_bytes, "the pieces do not end with the data file");
  const std::string printed = print_index(index);
  MW_CHECK(print_index(parse_index(printed, "printed")) == printed,
           "an index does not survive printing");
}

void check_manifest(const Manifest& manifest) {
  const std::string printed = print_manifest(manifest);
  MW_CHECK(print_manifest(parse_manifest(printed, "printed")) == printed,
           "a manifest does not survive printing");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  answers(data, size,
          [](std::string_view text) { check_index(parse_index(text, "rank-0000.json")); });
  answers(data, size,
          [](std::string_view text) { check_manifest(parse_manifest(text, "manifest.json")); });
  answers(data, size, [](std::string_view text) {
    check_index(index_from_json(parse_json(text, "rank-0000.json"), "rank-0000.json"));
  });
  return answers(data, size, [](std::string_view text) {
    check_manifest(manifest_from_json(parse_json(text, "manifest.json"), "manifest.json"));
  });
}

}  // namespace meshwright
