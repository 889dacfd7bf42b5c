#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "ir/rule.h"
#include "mesh/mesh.h"
#include "ops/op_def.h"
#include "plan/strategy.h"

namespace meshwright {

// One operator with operands, as tests run its kernel: whole, or on the parts of a mesh.
struct KernelCase {
  const OpDef* def = nullptr;
  Attrs attrs;
  std::vector<TensorType> inputs, outputs;
  Rule rule;
  std::vector<at::Tensor> operands;  // Whole, in float64 or integers.
  std::vector<at::Tensor> seeds;     // Gradients of the results.
};

// An example of an operator with operands drawn at random, integers within their legal range.
KernelCase draw_case(const OpDef& def, const OpDef::Example& example);

// Results and gradients of operands, put together from parts as the rule says.
struct KernelRun {
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> gradients;  // Zeros where none flows; undefined for integer operands.
};

// Runs the kernel on every device of the mesh under a strategy of check_strategy's kind, with the
// neighbours' rows that lowering would bring. Throws Error where lowering refuses the split.
KernelRun run_split(const KernelCase& c, const Strategy& strategy, const Mesh& mesh,
                    std::string_view numerics = "float64");
// On one device.
KernelRun run_whole(const KernelCase& c, std::string_view numerics = "float64");

// A mesh with an axis of each size, and the strategy that splits factor f by the f-th list of axes.
Mesh test_mesh(std::initializer_list<int> sizes);

// Largest difference, relative to the largest element of `b` (absolute below one).
double difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace meshwright
