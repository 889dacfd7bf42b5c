#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "ops/kernel.h"

namespace meshwright {

/// How a run computes.
struct Numerics {
  /// Of values that the graph declares bf16, f16 or f8.
  at::ScalarType compute = at::kDouble;
  /// Of values that it declares f32 or f64: never narrower than `compute`.
  at::ScalarType precise = at::kDouble;
  at::Device device = at::kCPU;

  at::ScalarType type_of(DType dtype) const;
};
/// "float64", "float32", "bfloat16". Throws Error naming these.
Numerics parse_numerics(std::string_view name);

/// A random draw of an element is a function of this and of the element's place.
struct DrawKey {
  std::uint64_t key = 0;          ///< Of the run, the step and the operator.
  std::int64_t first_sample = 0;  ///< Of this micro-batch in the global batch.
};

/// What a kernel's special calls need besides ATen.
struct KernelServices {
  /// Combines a tensor over the devices that share the summed factors, in place; empty = one
  /// device.
  std::function<void(at::Tensor&, bool maximum)> group_reduce;
  DrawKey draw;
};

/// Makes a kernel's calls through the dispatcher, by name; autograd records them where gradients
/// are on. Results are given the element types `result_types`. Throws InternalError, naming the
/// call, for a name, an overload or an argument that the dispatcher does not take.
std::vector<at::Tensor> call_kernel(const Kernel& kernel, std::span<const at::Tensor> operands,
                                    std::span<const DType> result_types, const Numerics& numerics,
                                    const KernelServices& services);

}  // namespace meshwright
