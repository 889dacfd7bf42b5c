#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace meshwright {

struct OptimizerSettings {
  double learning_rate = 1e-3;
  double momentum = 0.9;  ///< sgd.
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< adamw, of every parameter.
};

/// What the optimizer keeps of (a shard of) a parameter.
struct OptimizerState {
  at::Tensor master;            ///< The parameter in the run's precise type.
  at::Tensor moment1, moment2;  ///< Undefined where the optimizer has none.
};
OptimizerState start_state(const std::string& optimizer, const at::Tensor& parameter,
                           at::ScalarType precise);

/// One update in place: "sgd" (Polyak momentum), "adam" (Kingma and Ba 2015), "adamw" (Loshchilov
/// and Hutter 2019), as PyTorch's. `step` counts from 0; `scale` multiplies the gradient
/// (clipping). Throws Error for another optimizer.
void update(const std::string& optimizer, const OptimizerSettings& settings, std::int64_t step,
            const at::Tensor& gradient, double scale, OptimizerState& state);

}  // namespace meshwright
