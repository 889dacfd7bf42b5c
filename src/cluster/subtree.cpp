#include "cluster/subtree.h"

#include <map>
#include <tuple>

namespace meshwright {

std::vector<std::vector<int>> child_lists(const Cluster& cluster) {
  std::vector<std::vector<int>> children(cluster.domains.size());
  for (std::size_t i = 1; i < cluster.domains.size(); ++i) {
    children[static_cast<std::size_t>(cluster.domains[i].parent)].push_back(static_cast<int>(i));
  }
  return children;
}

std::vector<int> subtree_classes(const Cluster& cluster,
                                 const std::vector<std::vector<int>>& children,
                                 const std::function<std::string(std::size_t)>& label) {
  using Look = std::tuple<std::string, std::string, std::string, double, double, double, double,
                          int, std::vector<std::pair<int, int>>>;
  std::map<Look, int> classes;
  std::vector<int> class_of(cluster.domains.size());
  for (std::size_t i = cluster.domains.size(); i-- > 0;) {
    const Domain& domain = cluster.domains[i];
    // Runs of equal children, so that a node with 1,000 equal ones has a short key.
    std::vector<std::pair<int, int>> runs;
    for (const int child : children[i]) {
      const int child_class = class_of[static_cast<std::size_t>(child)];
      if (runs.empty() || runs.back().first != child_class) runs.emplace_back(child_class, 0);
      ++runs.back().second;
    }
    const int kind =
        runs.empty() ? cluster.device_kind[static_cast<std::size_t>(domain.first_device)] : -1;
    Look look{domain.level,
              label(i),
              domain.link,
              domain.uplink.value,
              domain.lane.value,
              domain.latency.value,
              domain.pair_limit.value,
              kind,
              std::move(runs)};
    class_of[i] = classes.emplace(std::move(look), static_cast<int>(classes.size())).first->second;
  }
  return class_of;
}

}  // namespace meshwright
