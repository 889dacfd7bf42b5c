#pragma once

#include <string>

#include "api/request.h"

namespace meshwright {

/// The shipped plan spaces with their papers, one line each.
std::string space_list();

/// Rule by rule what a space does to a model on a cluster, and log10 of the number of plans before
/// and after. `loaded` must have a space.
std::string space_text(const Loaded& loaded);

/// What conflicts when rules contradict one another or the options whatever the layout; empty =
/// nothing does.
std::string contradiction(const Loaded& loaded);

/// Why a space leaves no plan (`fitting`: none that fits in memory): a smallest set of rules and
/// options that cannot all hold. Empty = the rules are not at fault.
std::string conflict_text(const Loaded& loaded, bool fitting);

}  // namespace meshwright
