#include "engine/optimizer.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace meshwright {

OptimizerState start_state(const std::string& optimizer, const at::Tensor& parameter,
                           at::ScalarType precise) {
  OptimizerState state;
  state.master = parameter.to(precise, false, true);
  state.moment1 = at::zeros_like(state.master);
  if (optimizer != "sgd") state.moment2 = at::zeros_like(state.master);
  return state;
}

void update(const std::string& optimizer, const OptimizerSettings& o, std::int64_t step,
            const at::Tensor& gradient, double scale, OptimizerState& s) {
  at::Tensor g = gradient.to(s.master.scalar_type());
  if (scale != 1) g = at::mul(g, scale);
  if (optimizer == "sgd") {
    s.moment1.mul_(o.momentum).add_(g);
    s.master.add_(s.moment1, -o.learning_rate);
    return;
  }
  if (optimizer != "adam" && optimizer != "adamw") {
    throw Error(fmt::format("the optimizer {} cannot be run", optimizer), {},
                "plan with adamw, adam or sgd");
  }
  if (optimizer == "adamw") s.master.mul_(1 - o.learning_rate * o.weight_decay);
  const double t = static_cast<double>(step + 1);
  s.moment1.mul_(o.beta1).add_(g, 1 - o.beta1);
  s.moment2.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
  const at::Tensor denominator = s.moment2.sqrt().div_(std::sqrt(correction2)).add_(o.epsilon);
  s.master.addcdiv_(s.moment1, denominator, -o.learning_rate / correction1);
}

}  // namespace meshwright
