#pragma once

#include <ATen/core/Tensor.h>

#include "engine/call_kernel.h"
#include "engine/comm.h"
#include "run/device_view.h"
#include "run/feeds.h"

namespace meshwright {

/// The part of a tensor that `box` says, counted from its first element; no copy.
at::Tensor part_of(const at::Tensor& tensor, const Box& box);

/// A buffer that holds nothing yet.
at::Tensor new_tensor(const LocalBuffer& buffer, at::ScalarType type, const Numerics& numerics);

/// The numbers that a graph's input, constant or parameter has in a buffer.
at::Tensor fed_tensor(const Feeds& feeds, ValueId id, const TensorType& type,
                      const LocalBuffer& buffer, std::int64_t step, std::int64_t first_sample,
                      const Numerics& numerics);
at::Tensor loss_weights(const Feeds& feeds, ValueId id, const TensorType& type,
                        const LocalBuffer& buffer, std::int64_t first_sample,
                        const Numerics& numerics);

/// The part of one buffer that another, smaller one of the same device holds.
at::Tensor slice_buffer(const at::Tensor& tensor, const LocalBuffer& from, const LocalBuffer& to);

/// One operand of a collective instruction.
struct CollectiveOperand {
  const LocalCollective* collective = nullptr;
  at::Tensor in;
  std::vector<std::int64_t> shape;  ///< Of the result.
};
/// Runs this device's part of a collective on all its operands: those that travel alike go in one
/// message. Results in the order of the operands.
std::vector<at::Tensor> run_collectives(Comm& comm, const std::vector<CollectiveOperand>& operands,
                                        int tag);

}  // namespace meshwright
