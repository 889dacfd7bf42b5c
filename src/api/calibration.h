#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "api/calibrate.h"
#include "api/calibrate_kernels.h"

namespace meshwright {

/// Tables of measurements, by what they measure.
struct CalibrationTables {
  std::vector<CsvTable> kernels, links;
  MeasuredRuns runs;
};

/// Sorts files by their columns. Throws Error for one that is no table of measurements.
CalibrationTables read_calibration_tables(const std::vector<std::filesystem::path>& files);

/// A calibrated efficiency file (as JSON text) and how good it is.
struct Calibration {
  std::string efficiency;
  std::vector<KernelFit> kernels;  ///< Of kernels and links.
  int skipped = 0;                 ///< Rows of kernel and link tables that were not used.
  /// Numbers fitted to one half of the runs, on that half and on the other one.
  ValidationReport fitted_half, held_out_half;
  /// The result: numbers fitted to all runs.
  ValidationReport all;
};

/// Fits kernels and links to their tables, then what is left of the numbers to the runs: step times
/// first, memory then. Once with half of the groups of runs (chosen by `seed`) to see how the
/// numbers do on the other half, and once with all. `progress` is told what is being done.
Calibration calibrate(CalibrationTables tables, const Json& start, std::uint64_t seed,
                      const std::function<void(const std::string&)>& progress = {});

/// The quality as people read it.
std::string describe(const Calibration& calibration);

}  // namespace meshwright
