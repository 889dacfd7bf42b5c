#pragma once

#include <optional>

#include "plan/lower.h"

// Plans that tests of the verifier share.

namespace meshwright {

/// The plan of some degrees with even pipeline cuts; nothing when it is not legal.
std::optional<Plan> test_plan(const Graph& graph, const std::vector<Segment>& segments,
                              const Degrees& degrees, std::int64_t global_batch);

}  // namespace meshwright
