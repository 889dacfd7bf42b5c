#pragma once

#include <vector>

#include "ops/op_def.h"

namespace meshwright {

/// Marks the dims of operand 0 that the attribute "dims" lists (negative ones count from the end).
/// Throws Error when one is out of range or given twice.
std::vector<bool> listed_dims(const OpContext& context);

}  // namespace meshwright
