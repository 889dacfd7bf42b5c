#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ops/op_def.h"

namespace meshwright {

/// The context of an operator's other functions.
inline OpContext op_context(const KernelContext& c) { return {c.attrs, c.inputs, c.outputs}; }

/// Whether a part has no element.
bool is_empty(const Box& box);

/// "reduce 'mean' cannot be run: the graph does not carry `lacks`", as an Error.
[[noreturn]] void cannot_run(std::string_view kind, std::string_view fn, std::string_view lacks);

/// Operand 0, as f64 (what the run uses for it) when it is not floating-point.
Slot as_floating(KernelBuilder& k, const KernelContext& c);

/// A vector over the channels of [batch, channels, …] in a shape that stretches to a tensor of
/// `rank` dims.
Slot along_channels(KernelBuilder& k, Slot vector, std::int64_t channels, int rank);

/// Listed dims of a tensor behind all others as one dim, and back.
class JoinedDims {
 public:
  JoinedDims(std::vector<std::int64_t> sizes, const std::vector<bool>& listed);

  Slot join(KernelBuilder& k, Slot x) const;
  Slot split(KernelBuilder& k, Slot x) const;

 private:
  std::vector<std::int64_t> order_, back_;    // Permutations.
  std::vector<std::int64_t> moved_, joined_;  // Sizes after moving, after joining.
};

}  // namespace meshwright
