#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "run/checkpoint.h"

namespace meshwright {

/// How far a run is from the model on one device.
struct Comparison {
  std::int64_t steps = 0;
  double loss = 0;        ///< Largest relative difference of a step's loss.
  double parameters = 0;  ///< Largest |a - b| / max |b| of a parameter, over all ranks' parts.
  std::string worst;      ///< The parameter of that.
  bool within(double tolerance) const { return loss <= tolerance && parameters <= tolerance; }
};
std::string to_string(const Comparison& comparison, double tolerance);

/// All ranks call it after step `first + losses.size()`: rank 0 trains the model by itself on the
/// same data (from `resumed` where the run did), hands its parameters round, and every rank
/// compares its parts. The same result on all ranks. `tell` is told of each step on one device.
Comparison compare_runs(Comm& comm, Executor& executor, const Plan& plan, const Graph& graph,
                        const Feeds& feeds, const ExecutorSettings& settings,
                        CheckpointReader* resumed, std::int64_t first,
                        const std::vector<double>& losses,
                        const std::function<void(std::int64_t)>& tell);

}  // namespace meshwright
