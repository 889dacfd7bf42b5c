#pragma once

#include <optional>

#include "plan/lower.h"

// Plans and programs that tests of the verifier share.

namespace meshwright {

/// The plan of some degrees with even pipeline cuts; nothing when it is not legal.
std::optional<Plan> test_plan(const Graph& graph, const std::vector<Segment>& segments,
                              const Degrees& degrees, std::int64_t global_batch);

/// Lowers it. Orders without messages get a send after each pass that makes something, a receive
/// before each that needs something.
Program test_program(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments);

}  // namespace meshwright
