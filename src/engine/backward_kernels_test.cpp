// Backward kernels against autograd on the forward ones, in float64: equal to rounding.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/call_kernel.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

Box whole(const TensorType& type) {
  Box box;
  for (const Dim& d : type.dims) box.push_back({0, d.size});
  return box;
}

TEST(BackwardKernels, AgreeWithAutograd) {
  int tried = 0;
  at::manual_seed(1);
  for (const OpDef* def : all_ops()) {
    if (def->backward_kernel == nullptr) continue;
    for (const OpDef::Example& example : def->examples()) {
      const auto types = infer(*def, {example.attrs, example.inputs, {}});
      std::vector<Box> in, out;
      std::vector<at::Tensor> operands;
      std::vector<DType> result_types, operand_types;
      for (const TensorType& t : example.inputs) {
        in.push_back(whole(t));
        operands.push_back(
            at::randn(sizes_of(in.back()), at::TensorOptions(at::kDouble)).set_requires_grad(true));
        operand_types.push_back(t.dtype);
      }
      for (const TensorType& t : types) {
        out.push_back(whole(t));
        result_types.push_back(t.dtype);
      }
      const KernelContext context{example.attrs, example.inputs, types, in, out};
      const Numerics numerics;
      at::AutoGradMode mode(true);
      const auto results =
          call_kernel(kernel_of(*def, context), operands, result_types, numerics, {});
      std::vector<at::Tensor> given;
      for (const at::Tensor& r : results) given.push_back(at::randn(r.sizes(), r.options()));
      const auto expected = torch::autograd::grad(results, operands, given);
      at::AutoGradMode off(false);
      std::vector<at::Tensor> all = given;
      for (const at::Tensor& t : operands) all.push_back(t.detach());
      for (const at::Tensor& t : results) all.push_back(t.detach());
      const std::size_t count = operands.size();
      // All gradients, and each alone.
      for (std::size_t only = 0; only <= count; ++only) {
        std::vector<bool> wanted(count, only == count);
        if (only < count) wanted[only] = true;
        const auto got =
            call_kernel(def->backward_kernel(context, wanted), all, operand_types, numerics, {});
        for (std::size_t k = 0; k < count; ++k) {
          EXPECT_EQ(got[k].defined(), wanted[k]) << def->kind << " operand " << k;
          if (!wanted[k]) continue;
          EXPECT_TRUE(got[k].sizes() == expected[k].sizes()) << def->kind << " operand " << k;
          EXPECT_TRUE(at::allclose(got[k], expected[k], 1e-12, 1e-12))
              << def->kind << " operand " << k;
        }
        ++tried;
      }
    }
  }
  EXPECT_GE(tried, 9);
}

}  // namespace
}  // namespace meshwright
