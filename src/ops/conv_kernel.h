#pragma once

#include <cstdint>
#include <vector>

#include "ops/kernel.h"

namespace meshwright {

/// The windows of a convolution, one entry per spatial dim.
struct ConvWindows {
  std::vector<std::int64_t> stride, dilation;
  std::vector<std::int64_t> begin, end;  ///< Padding before and after; negative = rows cut off.
  std::vector<std::int64_t> extra;       ///< Rows added after a transposed one's result.
  std::int64_t groups = 1;
  bool transposed = false;
};

/// Operands x [batch, in, …], w and perhaps bias [out]. Computes the rows of the result box, from
/// an operand box that has every row of the whole operand that they read. Throws Error for more
/// than 3 spatial dims.
Kernel conv_kernel(const KernelContext& context, const ConvWindows& windows);

}  // namespace meshwright
