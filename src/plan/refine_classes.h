#pragma once

#include <vector>

#include "plan/plan.h"

namespace meshwright {

/// Segments that overrides make different get different shape classes; equal ones keep sharing one.
void refine_classes(std::vector<Segment>& segments, const Overrides& overrides);

}  // namespace meshwright
