#pragma once

#include <string_view>

#include "ops/kernel.h"

namespace meshwright {

/// The calls of a pointwise activation by the name of its operator; "identity" is none.
Slot activate(KernelBuilder& k, std::string_view kind, Slot x);

}  // namespace meshwright
