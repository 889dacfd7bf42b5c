#pragma once

#include <string>

#include "cluster/cluster.h"
#include "cluster/kind_file.h"

namespace meshwright {

/// Reads the `tree:` form of a cluster file, which names every host and domain. Throws Error.
Cluster read_cluster_tree(const YAML::Node& node, std::string_view source, std::string name,
                          KindTable& kinds);

}  // namespace meshwright
