#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/box.h"
#include "ir/dtype.h"

namespace meshwright {

/// Sharded checkpoints (docs/checkpoint.md): each rank writes the pieces of tensors that it holds,
/// and any other cut of the same tensors is read back. Faults of files are Errors whose `where` is
/// the file.

/// What a rank holds of one tensor.
struct CheckpointPiece {
  std::string tensor;  ///< Name in the graph: "layers.3.mlp.up.weight".
  std::string part;    ///< Which value of it: "parameter", "moment1", … (free text).
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< Of the whole tensor, 16 dimensions at most.
  Box box;                          ///< The region.
  std::int64_t begin = 0, end = 0;  ///< The elements of the region that are held; the region is
                                    ///< flattened with the last dimension fastest.
  std::span<const std::byte> data;  ///< (end - begin) * dtype_bytes(dtype) bytes.
};

/// Equal on all ranks. Texts are UTF-8.
struct CheckpointInfo {
  std::int64_t step = 0;  ///< 0 to 1e12 - 1.
  std::string run;        ///< draw_run_id(); a run that goes on from a checkpoint keeps its id.
  std::string graph;      ///< graph_fingerprint.
  std::string plan;       ///< A hash or the text, 1 MiB at most.
  std::string extra;      ///< The caller's own (JSON text), 1 MiB at most.
  friend bool operator==(const CheckpointInfo&, const CheckpointInfo&) = default;
};

/// 64 random bits in 16 hexadecimal digits: which run wrote a checkpoint, so that files of two runs
/// are not mixed. Drawn once, by one rank.
std::string draw_run_id();

/// Writes one rank's files `<directory>/.step-00000100.partial/rank-0003.{bin,json}`. Every call
/// throws Error when the disk is full or fails: it names the file and the last completed
/// checkpoint, and the rank's files are gone.
class CheckpointWriter {
 public:
  /// Makes the directories. Throws Error when the directory holds checkpoints of another run.
  CheckpointWriter(const std::filesystem::path& directory, CheckpointInfo info, int rank,
                   int ranks);
  /// Removes the rank's files unless close() returned.
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter&&) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;

  /// Writes the data through; a piece may be empty, and pieces may overlap those of other ranks (of
  /// equal content).
  void add(const CheckpointPiece& piece);
  /// Makes the data durable, writes the index. Returns a digest of all that the rank wrote.
  std::string close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a checkpoint of what `ranks` closed writers left: called by exactly one rank after a
/// barrier. Checks that all files are there and belong together, writes the manifest, makes it all
/// durable and renames the folder to `step-00000100`; a checkpoint of the same step and run is
/// replaced in one stroke. Then removes the run's checkpoints of earlier steps but the newest
/// `keep` (this one counts; 1 at least), and unfinished ones of earlier steps. Only files of
/// checkpoints are removed, never others. Returns the checkpoint's path. On Error the unfinished
/// files are gone and the checkpoints before are as they were.
std::filesystem::path complete_checkpoint(const std::filesystem::path& directory, std::int64_t step,
                                          int ranks, int keep = 2);
/// Removes what writers of `run` left of an unfinished checkpoint; for a step that was given up.
void abandon_checkpoint(const std::filesystem::path& directory, std::int64_t step,
                        std::string_view run);

/// A tensor in a checkpoint.
struct CheckpointName {
  std::string tensor, part;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

/// Not for several threads at a time; several readers of one checkpoint are fine.
class CheckpointReader {
 public:
  /// `path` of one checkpoint, or of the directory: then the newest. Checks manifest, indexes and
  /// the sizes and heads of data files, without reading the data. Throws Error that names the
  /// damaged file; its hint says which older checkpoint is complete, if any.
  explicit CheckpointReader(const std::filesystem::path& path);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const std::filesystem::path& path() const;
  const CheckpointInfo& info() const;
  int ranks() const;  ///< That wrote it.
  /// All tensors and parts, sorted.
  const std::vector<CheckpointName>& names() const;
  bool holds(std::string_view tensor, std::string_view part) const;

  /// Fills `out` ((end - begin) * dtype_bytes(dtype) bytes) with the elements [begin, end) of the
  /// region `box`, out of whichever pieces hold them. A piece's checksum is checked when it is
  /// first used. Throws Error when the tensor, the part, its dtype or an element of the region is
  /// not there, and for a damaged piece (file, tensor, region); `out` is then undefined.
  void read(std::string_view tensor, std::string_view part, const Box& box, std::int64_t begin,
            std::int64_t end, DType dtype, std::span<std::byte> out);
  /// Reads everything; throws Error for the first damaged piece.
  void verify();

 private:
  std::unique_ptr<struct CheckpointContent> content_;
};

/// Steps of the completed checkpoints in a directory, ascending; their content is not checked.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory);
/// Path of the newest checkpoint below step `before` of which every byte was read and found good.
std::optional<std::filesystem::path> latest_intact_checkpoint(
    const std::filesystem::path& directory, std::int64_t before = INT64_MAX);

}  // namespace meshwright
