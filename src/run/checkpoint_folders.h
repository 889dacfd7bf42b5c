#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "run/checkpoint_index.h"

namespace meshwright {

/// Names and files of checkpoints on disk. Whatever follows a name of ours but is a link, or holds
/// none of our content, is somebody else's: it is neither read nor removed.

inline constexpr std::string_view kManifestFile = "manifest.json";

std::string step_folder(std::int64_t step);     ///< "step-00000100"
std::string partial_folder(std::int64_t step);  ///< ".step-00000100.partial"
/// The inverse of step_folder.
std::optional<std::int64_t> step_of_folder(std::string_view name);
std::string data_file(int rank);   ///< "rank-0003.bin"
std::string index_file(int rank);  ///< "rank-0003.json"

/// A folder whose name is of one of the forms above.
struct CheckpointFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
  bool partial = false;
  std::string run;        ///< Of the manifest, an index or a data file in it; empty = none of ours.
  bool complete = false;  ///< Has a manifest (whether or not it is good).
};

/// All of a directory (none when it is missing), by ascending step. `with_run` false leaves `run`
/// empty and reads no file.
std::vector<CheckpointFolder> find_checkpoint_folders(const std::filesystem::path& directory,
                                                      bool with_run);
CheckpointFolder look_at_folder(const std::filesystem::path& path, std::int64_t step, bool partial);
/// "the last completed checkpoint is step 90" or "there is no completed checkpoint".
std::string last_completed_text(const std::filesystem::path& directory);

/// Removes manifest, indexes and data files, the manifest first, and the folder if nothing else is
/// in it. Errors are left for the next time.
void remove_checkpoint_files(const std::filesystem::path& folder);
/// Removes the files of rank `first` and later ones.
void remove_rank_files(const std::filesystem::path& folder, int first);
/// Whether something else is in it.
bool holds_other_files(const std::filesystem::path& folder);

/// A new file that is written from end to end; one of the same name is unlinked first. Every call
/// throws Error placed at the file.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  void write(std::span<const std::byte> data);
  /// Flushes to the device and closes.
  void finish();

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

/// Makes the entries of a directory durable.
void sync_directory(const std::filesystem::path& directory);
/// Puts folder `from` in the place of `to`, which may exist: then they swap, or, where the file
/// system cannot do that (`swap` false = do as if), `to` becomes `aside` just before.
void put_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                const std::filesystem::path& aside, bool swap = true);

}  // namespace meshwright
