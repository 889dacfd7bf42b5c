#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cluster/cluster.h"

namespace meshwright {

/// Per domain, its children from left to right.
std::vector<std::vector<int>> child_lists(const Cluster& cluster);

/// Numbers the subtrees so that two get the same class exactly when they have equal links, levels,
/// device kinds and shape, and equal labels throughout. Names count only as far as `label` says.
std::vector<int> subtree_classes(const Cluster& cluster,
                                 const std::vector<std::vector<int>>& children,
                                 const std::function<std::string(std::size_t)>& label);

}  // namespace meshwright
