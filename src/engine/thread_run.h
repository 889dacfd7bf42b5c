#pragma once

#include <string>

#include "engine/executor.h"

namespace meshwright {

/// How far a program's run is from the model on one device.
struct RunDifference {
  double loss = 0;        ///< Largest relative difference over the steps.
  double parameters = 0;  ///< Largest relative difference over all ranks' parts of all parameters.
  std::string worst;      ///< The parameter of that.
  std::vector<double> losses;            ///< Of the program's run.
  std::vector<std::int64_t> bytes_sent;  ///< Per rank, all steps together.
};

/// Runs a program with one thread per rank and the model on one device on the same data, and
/// compares. Throws what a rank throws.
RunDifference run_threads(const Program& program, const Plan& plan, const Graph& graph,
                          const std::vector<Segment>& segments, int steps,
                          const ExecutorSettings& settings);

}  // namespace meshwright
