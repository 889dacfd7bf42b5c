#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/measured_sources.h"
#include "base/units.h"
#include "import/import.h"
#include "plan/plan.h"

namespace meshwright {

/// One measured training run, in the planner's terms.
struct MeasuredRun {
  std::string place;   ///< "file.csv:12".
  std::string source;  ///< Short name of the table it comes from.
  std::string engine;  ///< Name in the efficiency data.
  std::string model;   ///< As the table calls it.
  std::string gpu;
  GptSizes sizes;
  ImportOptions import;  ///< Global batch, sequence length, kernels.
  std::string cluster;   ///< Shorthand.
  int gpus = 1;
  Training training;
  Degrees degrees;
  std::vector<int> layers;  ///< Per chunk, in the order of the forward pass.
  bool one_layer = false;   ///< `step` is one layer's forward and backward pass.
  bool out_of_memory = false;
  std::optional<Seconds> step;  ///< Measured.
  std::optional<Bytes> peak;    ///< Measured.
  MemoryMeasure measure = MemoryMeasure::kReserved;
  bool peak_of_last_stage = false;
};

/// A row that cannot be used, and why. Reasons are few and worded alike, so that they can be
/// counted.
struct SkippedRow {
  std::string place;
  std::string source;
  std::string reason;
};

struct MeasuredRuns {
  std::vector<MeasuredRun> runs;
  std::vector<SkippedRow> skipped;
};

/// Reads a table of measured runs (docs/validation.md has its columns). Throws Error with
/// `source:line` for a missing column or a malformed cell.
MeasuredRuns read_measured_runs(std::string_view text, std::string_view file);

/// Layers per chunk by a rule. Empty when a chunk would get nothing: only the first (embedding) and
/// the last chunk (output layer) may be without layers.
std::vector<int> cut_layers(CutRule rule, const GptSizes& sizes, int chunks);

}  // namespace meshwright
