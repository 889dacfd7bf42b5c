#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "cluster/cluster.h"
#include "mesh/mesh.h"

namespace meshwright {

/// A c-mesh: how the groups along some axes of a p-mesh communicate *at the same time*. For every
/// level of the cluster's tree that a group crosses, the bandwidth that one group gets while all
/// groups of the mesh are active, and the latency of one crossing.
struct CommMesh {
  struct Level {
    std::string_view name;     ///< Level of the domain left ("device", "host", "rack").
    std::string_view link;     ///< What the uplink is made of ("nvlink", "ib", "efa").
    int members_inside = 1;    ///< Devices of the group below one uplink of this level.
    int groups_inside = 1;     ///< Parts of the group at this level: uplinks in use by one group.
    BytesPerSecond bandwidth;  ///< One group's share of one uplink, per direction.
    Seconds latency;
    double share = 1;  ///< What part of an uplink one group has: others talk at the same time.
  };
  int group_size = 1;
  std::vector<Level> levels;  ///< From the device outward; empty when group_size is 1.

  /// The outermost level crossed.
  const Level& widest() const { return levels.back(); }
};

/// Derives the c-mesh of `axes`. `concurrent_devices` of the cluster are taken to communicate at
/// once: all devices of the mesh.
CommMesh comm_mesh(const Cluster& cluster, const Mesh& mesh, const AxisList& axes);

/// The path between two devices (a pipeline boundary) while every device of the mesh sends to its
/// own peer `offset` devices away.
CommMesh peer_mesh(const Cluster& cluster, const Mesh& mesh, int offset);

}  // namespace meshwright
