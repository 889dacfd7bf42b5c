#pragma once

#include "plan/strategy.h"
#include "space/plan_space.h"

namespace meshwright {

/// Index of the first factor with this label or letter that may be split; otherwise of the first
/// with it; -1 = none.
int factor_named(const Rule& rule, std::string_view name);

/// Parts that a factor may be cut into at most.
inline std::int64_t factor_units(const Factor& factor) { return factor.size / factor.unit; }

/// Whether a strategy of an operator obeys everything that `space_rule` says about splits. Axes
/// named by the rule that the mesh lacks are obeyed by no strategy.
bool obeys(const SpaceRule& space_rule, const Rule& rule, const Strategy& strategy,
           const Roles& roles, const Mesh& mesh);

}  // namespace meshwright
