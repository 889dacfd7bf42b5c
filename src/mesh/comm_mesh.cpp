#include "mesh/comm_mesh.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "base/error.h"

namespace meshwright {
namespace {

// Domains from a device's leaf up to, excluding, the root.
std::vector<int> path_to_root(const Cluster& cluster, int device) {
  std::vector<int> path;
  for (int d = cluster.device_domain[static_cast<std::size_t>(device)];
       cluster.domains[static_cast<std::size_t>(d)].parent >= 0;
       d = cluster.domains[static_cast<std::size_t>(d)].parent) {
    path.push_back(d);
  }
  return path;
}

// Which devices compete for an uplink: all of the cluster (collectives run on every stage at once)
// or those of one mesh (a pipeline boundary is crossed by one stage at a time).
enum class Busy { kCluster, kMesh };

int mesh_devices_in(const Domain& domain, const Mesh& mesh) {
  const int first = std::max(domain.first_device, mesh.first_device);
  const int end =
      std::min(domain.first_device + domain.device_count, mesh.first_device + mesh.device_count());
  return std::max(end - first, 0);
}

CommMesh from_devices(const Cluster& cluster, const Mesh& mesh, const std::vector<DeviceId>& group,
                      Busy busy) {
  CommMesh result;
  result.group_size = static_cast<int>(group.size());
  if (group.size() < 2) return result;

  // Count the group's devices below every domain on their paths; a domain is left by traffic when
  // it does not hold the whole group.
  std::map<int, int> inside;
  for (DeviceId device : group) {
    for (int domain : path_to_root(cluster, device.value)) ++inside[domain];
  }
  std::map<std::string_view, CommMesh::Level> by_level;
  std::vector<std::pair<int, std::string_view>> order;  // (devices in domain, level name)
  for (const auto& [index, count] : inside) {
    if (count == result.group_size) continue;
    const Domain& domain = cluster.domains[static_cast<std::size_t>(index)];
    // The uplink is shared by everything busy below it; this group's share is its members' part.
    const int active = std::max(
        count, busy == Busy::kCluster ? domain.device_count : mesh_devices_in(domain, mesh));
    double bandwidth = domain.uplink.value * count / active;
    if (domain.lane.value > 0) bandwidth = std::min(bandwidth, domain.lane.value * count);
    // Siblings joined pair by pair: the group can use only the links between its own members.
    const Domain& parent = cluster.domains[static_cast<std::size_t>(domain.parent)];
    if (parent.pair_limit.value > 0) {
      const auto siblings = std::count_if(inside.begin(), inside.end(), [&](const auto& other) {
        return cluster.domains[static_cast<std::size_t>(other.first)].parent == domain.parent;
      });
      const double peers = static_cast<double>(std::max<std::ptrdiff_t>(siblings - 1, 1));
      bandwidth = std::min(bandwidth, parent.pair_limit.value * peers);
    }
    const BytesPerSecond share(bandwidth);
    auto [it, fresh] = by_level.try_emplace(domain.level);
    CommMesh::Level& level = it->second;
    if (fresh) {
      level = {domain.level,
               domain.link,
               count,
               1,
               share,
               domain.latency,
               static_cast<double>(count) / active};
      order.emplace_back(domain.device_count, domain.level);
    } else {
      ++level.groups_inside;
      level.members_inside = std::min(level.members_inside, count);
      level.bandwidth = std::min(level.bandwidth, share);
      level.latency = std::max(level.latency, domain.latency);
      level.share = std::min(level.share, static_cast<double>(count) / active);
    }
  }
  std::sort(order.begin(), order.end());
  for (const auto& [size, name] : order) result.levels.push_back(by_level.at(name));
  return result;
}

}  // namespace

CommMesh comm_mesh(const Cluster& cluster, const Mesh& mesh, const AxisList& axes) {
  return from_devices(cluster, mesh, mesh.group(axes), Busy::kCluster);
}

CommMesh peer_mesh(const Cluster& cluster, const Mesh& mesh, int offset) {
  const int peer = mesh.first_device + offset;
  MW_CHECK(peer >= 0 && peer < cluster.device_count(), "pipeline peer outside the cluster");
  return from_devices(cluster, mesh, {DeviceId(mesh.first_device), DeviceId(peer)}, Busy::kMesh);
}

}  // namespace meshwright
