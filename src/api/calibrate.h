#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api/validate.h"

namespace meshwright {

/// One number of an efficiency file that a calibration may change.
struct FitParameter {
  std::string pointer;  ///< JSON pointer: "/engines/megatron/compute_scale".
  double low = 0, high = 1;
  bool logarithmic = false;  ///< Steps multiply rather than add.
  std::string engine;        ///< Only runs of this engine, or of one that extends it, depend on it.
  std::string architecture;  ///< Only runs on this one depend on it; empty = all.
  std::string link;          ///< Only runs with such links depend on it; empty = all.
};

/// What is minimized, each a mean over sources that counts every source once.
enum class FitGoal {
  kStepTime,  ///< |log(predicted / measured)| of step times.
  kMemory,    ///< The same of peak memory, and the confidence by which runs are told to fit or not.
};

/// The end-to-end numbers of every engine that the runs name: step-time ones or memory ones. Of an
/// engine that extends another one, only those that its entry has.
std::vector<FitParameter> engine_parameters(const PreparedRuns& runs, const Json& efficiency,
                                            FitGoal goal);
/// The rate of matrix products on architectures of the runs, and the bandwidth of links, that no
/// kernel or link table was fitted to: fit_kernels gives the others a key "source".
std::vector<FitParameter> architecture_parameters(const PreparedRuns& runs, const Json& efficiency);
std::vector<FitParameter> link_parameters(const PreparedRuns& runs, const Json& efficiency);

struct FitProgress {
  int sweep = 0;
  double objective = 0;
  std::string parameter;
};

struct FitResult {
  std::vector<double> start, values;  ///< Parallel to the parameters.
  double before = 0, after = 0;       ///< Objective on the runs that were fitted.
  int evaluations = 0;
};

/// Minimizes the goal by coordinate_search from the file's own numbers, which also pull a little: a
/// number that the runs say nothing about stays. Deterministic. `which` restricts the runs (all
/// when empty).
FitResult fit(const PreparedRuns& runs, const std::vector<std::size_t>& which,
              const Json& efficiency, const std::vector<FitParameter>& parameters, FitGoal goal,
              const std::function<void(const FitProgress&)>& progress = {});

/// An efficiency file with other values of some parameters.
Json with_values(Json efficiency, const std::vector<FitParameter>& parameters,
                 const std::vector<double>& values);

/// Halves the runs at random by groups (runs that are compared with each other stay together).
struct Halves {
  std::vector<std::size_t> fit, held_out;
};
Halves split_groups(const PreparedRuns& runs, std::uint64_t seed);

}  // namespace meshwright
