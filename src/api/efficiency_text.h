#pragma once

#include <string>

#include "base/json.h"

namespace meshwright {

/// The text of an efficiency file: numbers with three significant digits, one line per entry that
/// fits on one.
std::string efficiency_text(const Json& efficiency);

}  // namespace meshwright
