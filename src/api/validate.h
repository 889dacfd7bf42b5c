#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/validate_metrics.h"
#include "api/validate_rows.h"
#include "base/json.h"
#include "cost/efficiency.h"
#include "cost/memory.h"
#include "plan/program.h"

namespace meshwright {

/// What the planner says of one measured run.
struct Prediction {
  Seconds step;
  Bytes peak;  ///< In the sense of the run's MemoryMeasure, of the fullest (or last) stage.
  MemoryBreakdown memory;  ///< Of the fullest stage's device.
  Bytes capacity;          ///< What a device has.

  bool fits() const { return memory.total() <= capacity; }
};

/// A run with its plan lowered, to be simulated with any efficiency numbers.
class PreparedRuns {
 public:
  /// Called with rows done and rows in all.
  using Progress = std::function<void(std::size_t, std::size_t)>;

  /// Builds models and clusters, and lowers every run with the engine's cut; equal parts are
  /// shared. Runs that break a rule of the planner move to the skipped ones.
  PreparedRuns(MeasuredRuns measured, const Progress& progress = {});
  ~PreparedRuns();
  PreparedRuns(PreparedRuns&&) noexcept;

  const std::vector<MeasuredRun>& runs() const;
  const std::vector<SkippedRow>& skipped() const;
  /// Runs that are compared with each other: same source, model, devices, global batch, sequence
  /// length. Numbered from 0.
  const std::vector<int>& group() const;
  /// Architecture of the devices of run i ("hopper").
  const std::string& architecture(std::size_t i) const;
  /// Whether some uplink of run i's cluster is made of this ("nvlink", "eth").
  bool uses_link(std::size_t i, std::string_view link) const;

  /// Simulates some runs (all when `which` is empty) with the numbers of an efficiency file;
  /// `engine` "auto" = each run's own. The result is parallel to `which` (or to runs()).
  std::vector<Prediction> predict(const Json& efficiency, std::string_view engine = "auto",
                                  const std::vector<std::size_t>& which = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SourceReport {
  std::string source;
  int used = 0;
  std::map<std::string, int> skipped;  ///< By reason.
  int timed = 0;                       ///< Runs with a step time.
  double mape = 0, median = 0;         ///< Of step time.
  RankCount ranks;
  int groups = 0;  ///< With at least two timed runs.
  double regret_mean = 0, regret_max = 0;
  int weighed = 0;  ///< Runs with a measured peak.
  double memory_mape = 0, memory_median = 0;
  Confusion confusion;

  int skipped_rows() const;
};

struct ValidationReport {
  std::vector<SourceReport> sources;  ///< By name.
  /// Means over sources, each counted once.
  double mape = 0, tau = 0, regret_mean = 0, memory_mape = 0;
  double balanced_accuracy = 0;  ///< Over sources that have runs of both kinds.
  double regret_max = 0;         ///< Over all groups.

  struct Row {
    std::string place, source, model, layout;
    int gpus = 0;
    std::optional<Seconds> step;
    std::optional<Bytes> peak;
    bool out_of_memory = false;
    Prediction predicted;
  };
  std::vector<Row> rows;
  std::vector<SkippedRow> skipped;
};

/// Compares predictions with measurements; `which` (all when empty) restricts it to some runs.
ValidationReport compare(const PreparedRuns& prepared, const std::vector<Prediction>& predictions,
                         const std::vector<std::size_t>& which = {});

/// Reads the tables, predicts every run and compares. Rows that an earlier table has too are left
/// out. `engine` "auto" or a name. Throws Error for a table that cannot be read.
ValidationReport validate(const std::vector<std::filesystem::path>& files,
                          std::string_view engine = "auto",
                          const PreparedRuns::Progress& progress = {});
/// The first half of validate.
MeasuredRuns read_measured_files(const std::vector<std::filesystem::path>& files);

/// The report as people read it: one line per source, totals, what was left out and why; with
/// `rows`, one line per run.
std::string describe(const ValidationReport& report, bool rows = false);
Json report_json(const ValidationReport& report, bool rows = true);

}  // namespace meshwright
