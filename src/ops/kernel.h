#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/attrs.h"
#include "ir/box.h"
#include "ir/tensor_type.h"

namespace meshwright {

/// What an operator's kernel is asked for: its attributes, the types of its whole operands and
/// results (of one micro-batch), and which part of each this device has. A part of an operand
/// includes the rows of neighbours that it was given (halo).
struct KernelContext {
  const Attrs& attrs;
  std::span<const TensorType> inputs;
  std::span<const TensorType> outputs;
  std::span<const Box> input_boxes;
  std::span<const Box> output_boxes;
  /// Devices that share the rule's summed ("+") factors, and which of them this is.
  int parts = 1;
  int part = 0;
};

/// A tensor of a kernel: its operands come first, then the results of its calls in their order.
/// -1 in a list of optional tensors: none.
struct Slot {
  int index = 0;
};

/// The argument that takes the device that the program runs on.
struct RunDevice {};
/// No value: `None` in Python.
struct NoValue {};

/// DType stands for what the run uses in its place (see call_kernel).
using KernelArg = std::variant<NoValue, bool, std::int64_t, double, std::string, Slot,
                               std::vector<Slot>, std::vector<std::int64_t>, DType, RunDevice>;

/// One call of an ATen operator by its schema name, "aten::sum.dim_IntList". Arguments are
/// positional; those that follow take the schema's defaults. Besides ATen there are:
/// - "group::sum"(x), "group::max"(x): over the devices that share the summed factors; a constant
///   for the backward pass.
/// - "random::keep"(p, begins, sizes, whole, batch_dim): 1 with probability 1 - p, else 0, for the
///   elements [begins, begins + sizes) of a tensor of shape `whole`. An element's draw depends on
///   its place in the whole tensor (its sample counted over the global batch, along `batch_dim`, -1
///   = none), the operator and the step, never on the device.
struct KernelCall {
  std::string name;
  std::vector<KernelArg> args;
  int results = 1;
};

/// An operator on one device's parts as calls of ATen operators. Its backward pass is their
/// derivative.
struct Kernel {
  std::vector<KernelCall> calls;
  std::vector<Slot> results;  ///< One per result; index -1 = none (zero, in a backward kernel).
};

/// Builds a kernel call by call.
class KernelBuilder {
 public:
  explicit KernelBuilder(const KernelContext& context)
      : KernelBuilder(static_cast<int>(context.inputs.size())) {}
  explicit KernelBuilder(int operands) : next_(operands) {}

  Slot call(std::string_view name, std::vector<KernelArg> args) {
    return calls(name, std::move(args), 1)[0];
  }
  /// A call with several results.
  std::vector<Slot> calls(std::string_view name, std::vector<KernelArg> args, int results) {
    kernel_.calls.push_back({std::string(name), std::move(args), results});
    std::vector<Slot> slots;
    for (int i = 0; i < results; ++i) slots.push_back({next_++});
    return slots;
  }
  Kernel finish(std::vector<Slot> results) {
    kernel_.results = std::move(results);
    return std::move(kernel_);
  }

 private:
  Kernel kernel_;
  int next_;
};

/// A kernel of one call on all operands in their order, then `rest`.
Kernel one_call(const KernelContext& context, std::string_view name,
                std::vector<KernelArg> rest = {});

/// Sizes of a box.
std::vector<std::int64_t> sizes_of(const Box& box);

/// x as what the run uses for an element type.
Slot cast(KernelBuilder& k, Slot x, DType dtype);
/// begin, begin + 1, … end - 1 as 64-bit integers.
Slot indices(KernelBuilder& k, const Interval& interval);
/// Dropout of x, the part `box` of a tensor of type `whole`; draws of the dim "batch" go by sample.
Slot drop(KernelBuilder& k, Slot x, double p, const TensorType& whole, const Box& box);

}  // namespace meshwright
