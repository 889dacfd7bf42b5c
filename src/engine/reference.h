#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/executor.h"

namespace meshwright {

/// The model on one device, as PyTorch would train it: the graph operator by operator under
/// autograd as a whole, gradients summed over the micro-batches, one optimizer. Knows nothing of
/// plans and programs; what it shares with the executor are the operators' kernels.
class Reference {
 public:
  Reference(const Graph& graph, const Training& training, std::int64_t global_batch,
            std::int64_t micro_batches, const Feeds& feeds, const ExecutorSettings& settings);
  ~Reference();

  StepResult step(std::int64_t step);
  /// By value.
  std::map<std::int32_t, OptimizerState>& parameters();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The largest relative difference |a - b| / max |b| of the parts of a parameter that two runs
/// have; `region` says which part of `whole` `part` is. 0 for equal empty parts.
double relative_difference(const at::Tensor& part, const LocalBuffer& region,
                           const at::Tensor& whole);

/// Whether a difference is worse than the worst so far; what is not a number is worst.
inline bool is_worse(double difference, double worst) {
  return difference != difference || difference > worst;
}

}  // namespace meshwright
