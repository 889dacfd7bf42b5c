#pragma once

#include <string>

#include "api/request.h"

namespace meshwright {

/// What would make an infeasible request feasible: which memory term does it, the smallest number
/// of these devices that fits, and the nearest changes that do. `result` is the search that found
/// nothing that fits. Searches further itself; stops early when `control.stop` is set.
std::string advise(const Loaded& loaded, const SearchResult& result, const SearchControl& control);

/// Why no layout obeys every rule: the legal values of the degrees that are pinned.
std::string explain_illegal(const Problem& problem, const Restrictions& restrictions);

/// A cluster of `hosts` hosts like the first one of `cluster` under one switch.
Cluster with_hosts(const Cluster& cluster, int hosts);

}  // namespace meshwright
