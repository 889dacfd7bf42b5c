// A checkpoint comes to be in a hidden folder beside its place and is renamed when it is durable,
// so that a name that readers look at is always a whole checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "run/checkpoint_folders.h"
#include "run/crc32.h"

namespace meshwright {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;  // What the checksum leaves in the cache for write.

Error with_last_completed(const Error& e, const fs::path& directory) {
  return Error(fmt::format("{}; {}", e.message(), last_completed_text(directory)), e.where(),
               e.hint().empty() ? "make room, or check the disk and its permissions" : e.hint());
}

fs::path aside_folder(const fs::path& directory, std::int64_t step) {
  return directory / ("." + step_folder(step) + ".replaced");
}

// Of a partial folder without any sign of a run: a writer that died before its first byte.
bool has_only_empty_files(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!fs::is_regular_file(it->symlink_status(error)) || it->file_size(error) > 0) return false;
  }
  return !error;
}

// Hidden first: a removal that is cut short leaves no half checkpoint under a name that readers
// look at. With somebody's notes in it, the folder stays.
void remove_checkpoint(const fs::path& directory, const CheckpointFolder& folder) {
  fs::path doomed = folder.path;
  if (!holds_other_files(folder.path)) {
    const fs::path hidden = directory / partial_folder(folder.step);
    std::error_code error;
    fs::rename(doomed, hidden, error);
    if (!error) doomed = hidden;
  }
  remove_checkpoint_files(doomed);
}

void remove_old(const fs::path& directory, const CheckpointInfo& info, int keep) {
  const auto folders = find_checkpoint_folders(directory, true);
  std::vector<std::int64_t> kept;
  for (const CheckpointFolder& f : folders) {
    if (!f.partial && f.complete && f.run == info.run && f.step <= info.step) {
      kept.push_back(f.step);
    }
  }
  const auto most = static_cast<std::size_t>(keep);
  const std::int64_t oldest = kept.size() < most ? 0 : kept[kept.size() - most];
  for (const CheckpointFolder& f : folders) {
    if (!f.partial && f.run == info.run && f.step < oldest) remove_checkpoint(directory, f);
    if (f.partial && f.step <= info.step &&
        (f.run == info.run || (f.run.empty() && has_only_empty_files(f.path)))) {
      remove_checkpoint_files(f.path);
    }
  }
}

Manifest manifest_of(const fs::path& folder, std::int64_t step, int ranks) {
  Manifest manifest;
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path path = folder / index_file(rank);
    const std::string text = read_file(path, 64 << 20);
    const RankIndex index = parse_index(text, path.string());
    if (rank == 0) manifest.info = index.info;
    if (index.info.step != step || index.rank != rank || index.ranks != ranks) {
      throw Error(fmt::format("is of step {}, rank {} of {}, and not of step {}, rank {} of {}",
                              index.info.step, index.rank, index.ranks, step, rank, ranks),
                  path.string());
    }
    if (index.info.run != manifest.info.run) {
      throw Error(fmt::format("is of run {}, but {} is of run {}", index.info.run, index_file(0),
                              manifest.info.run),
                  path.string());
    }
    if (index.info != manifest.info) {
      throw Error(fmt::format("has another graph, plan or text than {}", index_file(0)),
                  path.string(), "all ranks must give the same CheckpointInfo");
    }
    const fs::path data = folder / data_file(rank);
    std::error_code error;
    const auto bytes = fs::file_size(data, error);
    if (error) throw Error("no such file", data.string());
    if (bytes != static_cast<std::uint64_t>(index.data_bytes)) {
      throw Error(fmt::format("is of {} bytes, but its index says {}", bytes, index.data_bytes),
                  data.string());
    }
    manifest.files.push_back({static_cast<std::int64_t>(text.size()),
                              crc32(0, std::as_bytes(std::span(text))), index.data_bytes});
  }
  return manifest;
}

// Whether a checkpoint of the same step and run is in the place.
void check_place(const fs::path& directory, const CheckpointInfo& info) {
  const fs::path place = directory / step_folder(info.step);
  std::error_code error;
  const fs::file_status status = fs::symlink_status(place, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    throw Error("is in the place of a checkpoint and is no folder", place.string(),
                "move it away or name another directory");
  }
  const std::string run = look_at_folder(place, info.step, false).run;
  if (run != info.run) {
    throw Error(run.empty()
                    ? "is in the place of a checkpoint and none can be recognized in it"
                    : fmt::format("is a checkpoint of another run ({}, not {})", run, info.run),
                place.string(), "move it away or name another directory");
  }
}

}  // namespace

std::string draw_run_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

struct CheckpointWriter::State {
  fs::path directory, folder;
  RankIndex index;
  std::optional<DurableFile> data;

  // The rank's files go when the writer does, but for those of a closed writer.
  ~State() {
    if (data) remove_files();
  }

  void remove_files() {
    data.reset();
    std::error_code ignored;
    fs::remove(folder / data_file(index.rank), ignored);
    fs::remove(folder / index_file(index.rank), ignored);
    fs::remove(folder, ignored);  // When it is empty.
  }

  template <typename F>
  void guard(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      remove_files();
      throw with_last_completed(e, directory);
    }
  }
};

CheckpointWriter::CheckpointWriter(const fs::path& directory, CheckpointInfo info, int rank,
                                   int ranks)
    : state_(std::make_unique<State>()) {
  MW_CHECK(info.step >= 0 && info.step <= kMaxStep, "the step is out of range");
  MW_CHECK(rank >= 0 && rank < ranks && ranks <= kMaxRanks, "the rank is out of range");
  MW_CHECK(is_run_id(info.run), "the run's id is not from draw_run_id");
  for (const CheckpointFolder& f : find_checkpoint_folders(directory, true)) {
    if (!f.partial && f.complete && !f.run.empty() && f.run != info.run) {
      throw Error(
          fmt::format("holds checkpoints of another run (step {} of run {})", f.step, f.run),
          directory.string(), "go on from one of them, or name another directory");
    }
  }
  check_place(directory, info);
  State& state = *state_;
  state.directory = directory;
  state.folder = directory / partial_folder(info.step);
  state.index = {std::move(info), rank, ranks, 0, {}};
  state.guard([&] {
    std::error_code error;
    fs::create_directories(state.folder, error);
    if (error) throw Error("cannot be made: " + error.message(), state.folder.string());
    // An index that an earlier attempt left must not be taken for this one's.
    fs::remove(state.folder / index_file(rank), error);
    state.data.emplace(state.folder / data_file(rank));
    const std::string head = data_head(state.index.info, rank);
    state.data->write(std::as_bytes(std::span(head)));
    state.index.data_bytes = kDataHeadBytes;
  });
}

CheckpointWriter::~CheckpointWriter() = default;
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;

void CheckpointWriter::add(const CheckpointPiece& piece) {
  State& state = *state_;
  MW_CHECK(state.data, "the writer is closed or has failed");
  MW_CHECK(piece.box.size() == piece.shape.size() && piece.shape.size() <= 16,
           "the piece's region has not the tensor's dimensions");
  Box whole;
  for (std::size_t d = 0; d < piece.shape.size(); ++d) {
    const Interval& i = piece.box[d];
    MW_CHECK(0 <= i.begin && i.begin <= i.end && i.end <= piece.shape[d],
             "the piece's region is not within the tensor");
    whole.push_back({0, piece.shape[d]});
  }
  const std::int64_t elements = box_elements(piece.box);
  MW_CHECK(box_elements(whole) >= 0 && elements >= 0, "the tensor has more than 2^60 elements");
  MW_CHECK(0 <= piece.begin && piece.begin <= piece.end && piece.end <= elements,
           "the piece's elements are not within its region");
  const auto bytes = static_cast<std::int64_t>(piece.data.size());
  MW_CHECK(bytes == (piece.end - piece.begin) * dtype_bytes(piece.dtype),
           "the piece's data is not of its size");
  MW_CHECK(piece.tensor.size() <= 4096 && piece.part.size() <= 4096,
           "the piece's name is too long");

  std::uint32_t crc = 0;
  state.guard([&] {
    for (std::size_t at = 0; at < piece.data.size(); at += kChunkBytes) {
      const auto chunk = piece.data.subspan(at, std::min(kChunkBytes, piece.data.size() - at));
      crc = crc32(crc, chunk);
      state.data->write(chunk);
    }
  });
  state.index.pieces.push_back({piece.tensor, piece.part, piece.dtype, piece.shape, piece.box,
                                piece.begin, piece.end, state.index.data_bytes, bytes, crc});
  state.index.data_bytes += bytes;
}

std::string CheckpointWriter::close() {
  State& state = *state_;
  MW_CHECK(state.data, "the writer is closed or has failed");
  std::string digest;
  state.guard([&] {
    state.data->finish();
    const std::string text = print_index(state.index);
    DurableFile file(state.folder / index_file(state.index.rank));
    file.write(std::as_bytes(std::span(text)));
    file.finish();
    sync_directory(state.folder);
    digest = fmt::format("{:08x}", crc32(0, std::as_bytes(std::span(text))));
  });
  state.data.reset();
  return digest;
}

fs::path complete_checkpoint(const fs::path& directory, std::int64_t step, int ranks, int keep) {
  MW_CHECK(keep >= 1 && ranks >= 1, "a checkpoint has a rank, and one is kept at least");
  const fs::path folder = directory / partial_folder(step);
  const fs::path place = directory / step_folder(step);
  Manifest manifest;
  try {
    manifest = manifest_of(folder, step, ranks);
    check_place(directory, manifest.info);
    remove_rank_files(folder, ranks);  // Of an attempt with more ranks that was cut short.
    const std::string text = print_manifest(manifest);
    DurableFile file(folder / kManifestFile);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
    sync_directory(folder);
    put_folder(folder, place, aside_folder(directory, step));
  } catch (const Error& e) {
    remove_checkpoint_files(folder);
    throw with_last_completed(e, directory);
  }
  sync_directory(directory);
  try {  // The first checkpoint may have made the directory.
    sync_directory(fs::absolute(directory / "..").lexically_normal());
  } catch (const Error&) {  // One that may not be looked into was there before.
  }
  remove_checkpoint_files(aside_folder(directory, step));
  remove_old(directory, manifest.info, keep);
  return place;
}

void abandon_checkpoint(const fs::path& directory, std::int64_t step, std::string_view run) {
  const fs::path folder = directory / partial_folder(step);
  const std::string found = look_at_folder(folder, step, true).run;
  if (found == run || (found.empty() && has_only_empty_files(folder))) {
    remove_checkpoint_files(folder);
  }
}

}  // namespace meshwright
