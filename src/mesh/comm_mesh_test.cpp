#include "mesh/comm_mesh.h"

#include <gtest/gtest.h>

namespace meshwright {
namespace {

// Two hosts of eight devices: tp inside a host, dp between hosts.
struct TwoHosts {
  Cluster cluster = read_cluster("dgx-h100:2");
  Mesh mesh{{{"tp", 8, 1}, {"dp", 2, 8}}, 0};
};

TEST(CommMesh, InsideAHostOnlyDeviceLinksCount) {
  const TwoHosts t;
  const CommMesh c = comm_mesh(t.cluster, t.mesh, {0});
  EXPECT_EQ(c.group_size, 8);
  ASSERT_EQ(c.levels.size(), 1u);
  EXPECT_EQ(c.levels[0].name, "device");
  EXPECT_EQ(c.levels[0].bandwidth.value, t.cluster.kinds[0].device_link.value);
}

// Eight groups, one member per host each: every group gets one eighth of the host's NICs.
TEST(CommMesh, ConcurrentGroupsShareTheUplink) {
  const TwoHosts t;
  const CommMesh narrow = comm_mesh(t.cluster, t.mesh, {1});
  const CommMesh wide = comm_mesh(t.cluster, t.mesh, {1, 0});
  EXPECT_EQ(narrow.widest().members_inside, 1);
  EXPECT_EQ(wide.widest().members_inside, 8);
  EXPECT_EQ(wide.widest().groups_inside, 2);
  EXPECT_NEAR(wide.widest().bandwidth.value, 8 * narrow.widest().bandwidth.value, 1);
  EXPECT_NEAR(wide.widest().bandwidth.value, 400e9, 1e9);  // Eight NICs of 400 Gb/s.
}

TEST(CommMesh, GroupsOfOneDoNotCommunicate) {
  const TwoHosts t;
  EXPECT_TRUE(comm_mesh(t.cluster, t.mesh, {}).levels.empty());
}

TEST(CommMesh, PeersInOneHostAvoidTheNetwork) {
  const TwoHosts t;
  const Mesh stage{{{"tp", 4, 1}}, 0};
  EXPECT_EQ(peer_mesh(t.cluster, stage, 4).widest().name, "device");
  EXPECT_NE(peer_mesh(t.cluster, stage, 8).widest().name, "device");
}

}  // namespace
}  // namespace meshwright
