#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/spelling.h"
#include "run/checkpoint_folders.h"
#include "run/crc32.h"
#include "run/flat_region.h"
#include "run/piece_stream.h"

namespace meshwright {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxOpenFiles = 64;

struct HeldPiece {
  int rank = 0;
  StoredPiece stored;
  bool checked = false;
};

using TensorKey = std::pair<std::string, std::string>;

struct HeldTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<HeldPiece> pieces;  // By box and range: replicas are neighbours.
};

Error damaged(const fs::path& path, std::string message) {
  return Error(std::move(message), path.string(), "the checkpoint is damaged: use an older one");
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string piece_text(const StoredPiece& piece) {
  return fmt::format("{} of tensor {}, region {}", in_quotes(piece.part), in_quotes(piece.tensor),
                     region_text(piece.box, piece.begin, piece.end));
}

}  // namespace

// An open checkpoint.
struct CheckpointContent {
  fs::path path;
  Manifest manifest;
  std::map<TensorKey, HeldTensor> tensors;
  std::vector<CheckpointName> names;
  std::map<int, OpenFile> open;
  std::vector<std::byte> buffer;

  fs::path data_path(int rank) const { return path / data_file(rank); }

  void load(const fs::path& folder) {
    path = folder;
    const fs::path file = path / kManifestFile;
    manifest = parse_manifest(read_file(file, 64 << 20), file.string());
    for (int rank = 0; rank < static_cast<int>(manifest.files.size()); ++rank) load_rank(rank);
    for (auto& [key, tensor] : tensors) {
      names.push_back({key.first, key.second, tensor.dtype, tensor.shape});
      std::stable_sort(tensor.pieces.begin(), tensor.pieces.end(),
                       [](const auto& a, const auto& b) {
                         const StoredPiece &x = a.stored, &y = b.stored;
                         for (std::size_t d = 0; d < x.box.size(); ++d) {
                           if (x.box[d].begin != y.box[d].begin)
                             return x.box[d].begin < y.box[d].begin;
                         }
                         return x.begin < y.begin;
                       });
    }
  }

  void load_rank(int rank) {
    const RankFiles& files = manifest.files[static_cast<std::size_t>(rank)];
    const fs::path file = path / index_file(rank);
    const std::string text = read_file(file, 64 << 20);
    RankIndex index = parse_index(text, file.string());
    if (index.info.run != manifest.info.run || index.info.step != manifest.info.step ||
        index.rank != rank) {
      throw damaged(file, fmt::format("is of step {}, rank {}, run {}, and does not belong to this "
                                      "checkpoint of step {}, run {}",
                                      index.info.step, index.rank, index.info.run,
                                      manifest.info.step, manifest.info.run));
    }
    if (static_cast<std::int64_t>(text.size()) != files.index_bytes ||
        crc32(0, std::as_bytes(std::span(text))) != files.index_crc32 ||
        index.data_bytes != files.data_bytes || index.info != manifest.info) {
      throw damaged(file, "is not the index with which the checkpoint was completed");
    }
    check_data_file(rank, files.data_bytes);
    for (StoredPiece& piece : index.pieces) {
      HeldTensor& tensor = tensors[{piece.tensor, piece.part}];
      if (tensor.pieces.empty()) {
        tensor.dtype = piece.dtype;
        tensor.shape = piece.shape;
      } else if (tensor.dtype != piece.dtype || tensor.shape != piece.shape) {
        throw damaged(
            file,
            fmt::format("says that {} of tensor {} is {} {}, but rank {} that it is "
                        "{} {}",
                        in_quotes(piece.part), in_quotes(piece.tensor), dtype_name(piece.dtype),
                        shape_text(piece.shape), tensor.pieces[0].rank, dtype_name(tensor.dtype),
                        shape_text(tensor.shape)));
      }
      tensor.pieces.push_back({rank, std::move(piece), false});
    }
  }

  void check_data_file(int rank, std::int64_t bytes) const {
    const fs::path file = data_path(rank);
    std::error_code error;
    if (!fs::is_regular_file(fs::status(file, error))) throw damaged(file, "no such file");
    const auto found = fs::file_size(file, error);
    if (error || found != static_cast<std::uint64_t>(bytes)) {
      throw damaged(file, fmt::format("is of {} bytes, and {} were written", found, bytes));
    }
    const std::string expected = data_head(manifest.info, rank);
    std::string head = expected;
    OpenFile(file).read(0, std::as_writable_bytes(std::span(head)));
    if (head == expected) return;
    throw damaged(file, run_of_head(head).empty()
                            ? fmt::format("does not begin as rank {}'s data of step {} should",
                                          rank, manifest.info.step)
                            : fmt::format("is not rank {}'s data of step {} and run {}: it begins "
                                          "with {}",
                                          rank, manifest.info.step, manifest.info.run,
                                          in_quotes(head.substr(29, 51))));
  }

  const OpenFile& file(int rank) {
    auto it = open.find(rank);
    if (it == open.end()) {
      if (open.size() >= kMaxOpenFiles) open.clear();
      it = open.try_emplace(rank, data_path(rank)).first;
    }
    return it->second;
  }

  void check_sum(HeldPiece& piece, std::uint32_t found) {
    if (found != piece.stored.crc32) {
      throw damaged(data_path(piece.rank),
                    fmt::format("is damaged: the checksum of {} is {:08x}, and {:08x} was written",
                                piece_text(piece.stored), found, piece.stored.crc32));
    }
    piece.checked = true;
  }

  // Copies what `missing` (positions in the target, ascending) lacks and the piece holds.
  void copy(HeldPiece& piece, const FlatRegion& target, std::int64_t element_bytes,
            std::span<std::byte> out, std::vector<Interval>& missing) {
    std::optional<PieceStream> stream;
    std::vector<Interval> left;
    std::size_t next = 0;
    const StoredPiece& stored = piece.stored;
    for_each_shared_run(
        {stored.box, stored.begin, stored.end}, target,
        [&](std::int64_t from, std::int64_t to, std::int64_t length) {
          for (; next < missing.size() && missing[next].end <= to; ++next) {
            left.push_back(missing[next]);
          }
          while (next < missing.size() && missing[next].begin < to + length) {
            Interval& gap = missing[next];
            const std::int64_t begin = std::max(to, gap.begin);
            const std::int64_t end = std::min(to + length, gap.end);
            if (gap.begin < begin) left.push_back({gap.begin, begin});
            if (!stream) stream.emplace(file(piece.rank), stored, !piece.checked, buffer);
            stream->copy(
                (from + (begin - to) - stored.begin) * element_bytes,
                out.subspan(static_cast<std::size_t>((begin - target.begin) * element_bytes),
                            static_cast<std::size_t>((end - begin) * element_bytes)));
            gap.begin = end;
            if (!gap.empty()) break;
            ++next;
          }
        });
    if (!stream) return;
    left.insert(left.end(), missing.begin() + static_cast<std::ptrdiff_t>(next), missing.end());
    missing = std::move(left);
    if (!piece.checked) check_sum(piece, stream->finish());
  }

  void verify() {
    for (auto& [key, tensor] : tensors) {
      for (HeldPiece& piece : tensor.pieces) {
        PieceStream stream(file(piece.rank), piece.stored, true, buffer);
        check_sum(piece, stream.finish());
      }
    }
  }

  HeldTensor& find(std::string_view tensor, std::string_view part) {
    const auto it = tensors.find({std::string(tensor), std::string(part)});
    if (it != tensors.end()) return it->second;
    std::vector<std::string> parts, all;
    for (const auto& [key, held] : tensors) {
      if (key.first == tensor) parts.push_back(key.second);
      if (all.empty() || all.back() != key.first) all.push_back(key.first);
    }
    if (!parts.empty()) {
      throw Error(fmt::format("holds no {} of tensor {}", in_quotes(part), in_quotes(tensor)),
                  path.string(), fmt::format("it holds its {}", fmt::join(parts, ", ")));
    }
    const auto near = nearest_names(tensor, all, 3);
    throw Error(fmt::format("holds no tensor {}", in_quotes(tensor)), path.string(),
                near.empty() ? "is it a checkpoint of another model?"
                             : fmt::format("nearest: {}", fmt::join(near, ", ")));
  }
};

namespace {

// The newest checkpoint of a directory, whether or not it is good.
CheckpointFolder newest_in(const fs::path& directory) {
  std::vector<CheckpointFolder> found = find_checkpoint_folders(directory, true);
  std::erase_if(found, [](const CheckpointFolder& f) { return f.run.empty() && !f.complete; });
  const auto newest = std::find_if(found.rbegin(), found.rend(),
                                   [](const CheckpointFolder& f) { return !f.partial; });
  if (newest != found.rend()) return *newest;
  if (found.empty()) {
    throw Error("holds no checkpoint", directory.string(),
                "name a checkpoint or a directory of checkpoints (step-00000100, ...)");
  }
  throw Error(fmt::format("holds no completed checkpoint, only an unfinished one of step {}",
                          found.back().step),
              directory.string());
}

// The newest below `step` that can be opened; `verify` reads all of its data, too.
std::optional<fs::path> latest_checkpoint_below(const fs::path& directory, std::int64_t step,
                                                bool verify) {
  std::vector<std::int64_t> steps = checkpoint_steps(directory);
  for (; !steps.empty(); steps.pop_back()) {
    if (steps.back() >= step) continue;
    try {
      CheckpointContent older;
      older.load(directory / step_folder(steps.back()));
      if (verify) older.verify();
      return older.path;
    } catch (const Error&) {  // Then an older one.
    }
  }
  return std::nullopt;
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& path)
    : content_(std::make_unique<CheckpointContent>()) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) throw Error("no such directory", path.string());
  std::optional<std::int64_t> step = step_of_folder(folder.filename().string());
  if (!step && !fs::exists(folder / kManifestFile, error)) {
    const CheckpointFolder newest = newest_in(folder);
    folder = newest.path;
    step = newest.step;
  }
  try {
    content_->load(folder);
  } catch (const Error& e) {
    const auto older =
        step ? latest_checkpoint_below(folder.parent_path(), *step, false) : std::nullopt;
    throw Error(e.message(), e.where(),
                older ? fmt::format("the older checkpoint {} is complete", older->string())
                      : "there is no older complete checkpoint beside it");
  }
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

const fs::path& CheckpointReader::path() const { return content_->path; }
const CheckpointInfo& CheckpointReader::info() const { return content_->manifest.info; }
int CheckpointReader::ranks() const { return static_cast<int>(content_->manifest.files.size()); }
const std::vector<CheckpointName>& CheckpointReader::names() const { return content_->names; }

bool CheckpointReader::holds(std::string_view tensor, std::string_view part) const {
  return content_->tensors.contains({std::string(tensor), std::string(part)});
}

void CheckpointReader::read(std::string_view tensor, std::string_view part, const Box& box,
                            std::int64_t begin, std::int64_t end, DType dtype,
                            std::span<std::byte> out) {
  CheckpointContent& content = *content_;
  HeldTensor& held = content.find(tensor, part);
  const auto what = [&] {
    return fmt::format("{} of tensor {}", in_quotes(part), in_quotes(tensor));
  };
  if (dtype != held.dtype) {
    throw Error(fmt::format("{} is stored as {} and asked for as {}", what(),
                            dtype_name(held.dtype), dtype_name(dtype)),
                content.path.string(), "run with the dtype of the checkpoint");
  }
  bool within = box.size() == held.shape.size();
  for (std::size_t d = 0; within && d < box.size(); ++d) {
    within = 0 <= box[d].begin && box[d].begin <= box[d].end && box[d].end <= held.shape[d];
  }
  if (!within) {
    throw Error(fmt::format("{} is of shape {}, and the region {} is not within it", what(),
                            shape_text(held.shape), region_text(box, begin, end)),
                content.path.string(), "is it a checkpoint of another model?");
  }
  MW_CHECK(0 <= begin && begin <= end && end <= box_elements(box),
           "the elements are not within the region");
  const std::int64_t element_bytes = dtype_bytes(dtype);
  MW_CHECK(static_cast<std::int64_t>(out.size()) == (end - begin) * element_bytes,
           "the memory is not of the region's size");

  std::vector<Interval> missing;
  if (begin < end) missing.push_back({begin, end});
  for (HeldPiece& piece : held.pieces) {
    if (missing.empty()) return;
    content.copy(piece, {box, begin, end}, element_bytes, out, missing);
  }
  if (missing.empty()) return;
  std::vector<std::string> files;
  for (const HeldPiece& piece : held.pieces) {
    const std::string name = data_file(piece.rank);
    if (std::find(files.begin(), files.end(), name) == files.end()) files.push_back(name);
    if (files.size() == 8) break;
  }
  throw Error(fmt::format("holds {} only in part: of region {} no rank wrote the elements {}..{}",
                          what(), region_text(box, begin, end), missing[0].begin, missing[0].end),
              content.path.string(), fmt::format("its pieces are in {}", fmt::join(files, ", ")));
}

void CheckpointReader::verify() { content_->verify(); }

std::vector<std::int64_t> checkpoint_steps(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  for (const CheckpointFolder& f : find_checkpoint_folders(directory, false)) {
    if (!f.partial && f.complete) steps.push_back(f.step);
  }
  return steps;
}

std::optional<fs::path> latest_intact_checkpoint(const fs::path& directory, std::int64_t before) {
  return latest_checkpoint_below(directory, before, true);
}

}  // namespace meshwright
