#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "plan/plan.h"

namespace meshwright {

/// What a plan says of single operators and segments, by name: {"operators": [{"match": [patterns],
/// "replicate", "split": {factor: [axes]}}], "recompute": {segment: mode}} (docs/plan_format.md).
/// Operators that differ only in a number of their path share a pattern with a range.
Json overrides_to_json(const Overrides& overrides, const Graph& graph,
                       const std::vector<Segment>& segments);
/// Throws Error placed at `source`: unknown keys, patterns that match nothing, two entries for one
/// operator.
std::shared_ptr<const Overrides> overrides_from_json(const Json& json, const Graph& graph,
                                                     const std::vector<Segment>& segments,
                                                     std::string_view source);

}  // namespace meshwright
