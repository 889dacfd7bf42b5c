#include "run/checkpoint_folders.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace meshwright {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMaxTextBytes = 64 << 20;

[[noreturn]] void fail(const fs::path& path, std::string_view what) {
  throw Error(fmt::format("{}: {}", what, std::strerror(errno)), path.string());
}

// The number in `name` = prefix, digits, suffix.
std::optional<std::int64_t> number_in(std::string_view name, std::string_view prefix,
                                      std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) ||
      name.size() <= prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return value;
}

struct RankFile {
  int rank = -1;  // -1 = none of ours.
  bool data = false;
};

RankFile rank_file(const std::string& name) {
  for (const bool data : {true, false}) {
    const auto rank = number_in(name, "rank-", data ? ".bin" : ".json");
    if (rank && *rank >= 0 && *rank < kMaxRanks) {
      const int r = static_cast<int>(*rank);
      if (name == (data ? data_file(r) : index_file(r))) return {r, data};
    }
  }
  return {};
}

bool is_regular(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error));
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    result.push_back(it->path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::string run_of_data(const fs::path& path) {
  std::string head(static_cast<std::size_t>(kDataHeadBytes), '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  return run_of_head(head);
}

template <typename Parse>
std::string run_of_text(const fs::path& path, Parse parse) {
  try {
    return parse(read_file(path, kMaxTextBytes), path.string()).info.run;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string step_folder(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::string partial_folder(std::int64_t step) { return "." + step_folder(step) + ".partial"; }
std::string data_file(int rank) { return fmt::format("rank-{:04}.bin", rank); }
std::string index_file(int rank) { return fmt::format("rank-{:04}.json", rank); }

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  const auto step = number_in(name, "step-", "");
  const bool is_ours = step && *step >= 0 && *step <= kMaxStep && name == step_folder(*step);
  return is_ours ? step : std::nullopt;
}

CheckpointFolder look_at_folder(const fs::path& path, std::int64_t step, bool partial) {
  CheckpointFolder folder{step, path, partial, {}, is_regular(path / kManifestFile)};
  const std::vector<fs::path> files = entries(path);
  // The cheapest proof first.
  for (const fs::path& file : files) {
    if (!folder.run.empty()) return folder;
    if (rank_file(file.filename()).data && is_regular(file)) folder.run = run_of_data(file);
  }
  if (folder.run.empty() && folder.complete) {
    folder.run = run_of_text(path / kManifestFile, parse_manifest);
  }
  for (const fs::path& file : files) {
    if (!folder.run.empty()) return folder;
    const RankFile name = rank_file(file.filename());
    if (name.rank >= 0 && !name.data && is_regular(file)) {
      folder.run = run_of_text(file, parse_index);
    }
  }
  return folder;
}

std::vector<CheckpointFolder> find_checkpoint_folders(const fs::path& directory, bool with_run) {
  std::vector<CheckpointFolder> found;
  for (const fs::path& path : entries(directory)) {
    const std::string name = path.filename();
    const bool partial = name.starts_with(".");
    const auto step = number_in(name, partial ? ".step-" : "step-", partial ? ".partial" : "");
    if (!step || *step < 0 || *step > kMaxStep) continue;
    if (name != (partial ? partial_folder(*step) : step_folder(*step))) continue;
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(path, error))) continue;
    if (with_run) {
      found.push_back(look_at_folder(path, *step, partial));
    } else {
      found.push_back({*step, path, partial, {}, is_regular(path / kManifestFile)});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

std::string last_completed_text(const fs::path& directory) {
  const std::vector<std::int64_t> steps = checkpoint_steps(directory);
  return steps.empty() ? "there is no completed checkpoint"
                       : fmt::format("the last completed checkpoint is step {}", steps.back());
}

void remove_rank_files(const fs::path& folder, int first) {
  std::error_code ignored;
  for (const fs::path& file : entries(folder)) {
    if (rank_file(file.filename()).rank >= first && is_regular(file)) fs::remove(file, ignored);
  }
}

void remove_checkpoint_files(const fs::path& folder) {
  std::error_code ignored;
  if (is_regular(folder / kManifestFile)) fs::remove(folder / kManifestFile, ignored);
  remove_rank_files(folder, 0);
  ::rmdir(folder.c_str());
}

bool holds_other_files(const fs::path& folder) {
  for (const fs::path& file : entries(folder)) {
    const bool name_is_ours =
        file.filename() == kManifestFile || rank_file(file.filename()).rank >= 0;
    if (!name_is_ours || !is_regular(file)) return true;
  }
  return false;
}

DurableFile::DurableFile(fs::path path) : path_(std::move(path)) {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) fail(path_, "cannot be replaced");
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file_ < 0) fail(path_, "cannot be made");
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

DurableFile::~DurableFile() {
  if (file_ >= 0) ::close(file_);
}

void DurableFile::write(std::span<const std::byte> data) {
  MW_CHECK(file_ >= 0, "the file is closed");
  while (!data.empty()) {
    const auto written = ::write(file_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "cannot be written");
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void DurableFile::finish() {
  MW_CHECK(file_ >= 0, "the file is closed");
  // Some file systems tell of a full disk only here.
  if (::fsync(file_) != 0) fail(path_, "cannot be written");
  if (::close(std::exchange(file_, -1)) != 0) fail(path_, "cannot be written");
}

void sync_directory(const fs::path& directory) {
  const int file = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) fail(directory, "cannot be opened");
  const int result = ::fsync(file);
  const int error = errno;
  ::close(file);
  errno = error;
  // Some network file systems cannot sync a directory and need not.
  if (result != 0 && errno != EINVAL && errno != ENOTSUP) fail(directory, "cannot be synced");
}

void put_folder(const fs::path& from, const fs::path& to, const fs::path& aside, bool swap) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(to, error))) {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot be renamed to");
    return;
  }
  if (swap) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) fail(to, "cannot be replaced");
  }
  if (::rename(to.c_str(), aside.c_str()) != 0) fail(to, "cannot be put aside");
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    ::rename(aside.c_str(), to.c_str());
    errno = reason;
    fail(to, "cannot be renamed to");
  }
}

}  // namespace meshwright
