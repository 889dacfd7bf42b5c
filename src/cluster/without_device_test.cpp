#include "cluster/without_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace meshwright {
namespace {

TEST(WithoutDevice, EveryDeviceOfEveryShape) {
  for (const char* name : {"cpu:4", "a100-80:2x2", "dgx-h100:2", "dgx-a100:1+dgx-h100:1"}) {
    const Cluster whole = read_cluster(name);
    for (int d = 0; d < whole.device_count(); ++d) {
      const Cluster rest = without_device(whole, DeviceId(d));
      ASSERT_EQ(rest.device_count(), whole.device_count() - 1) << name << " " << d;
      for (int i = 0; i < rest.device_count(); ++i) {
        const int before = i < d ? i : i + 1;
        EXPECT_EQ(rest.kind(DeviceId(i)).name, whole.kind(DeviceId(before)).name);
        const auto host = [](const Cluster& c, int device) {
          return c.hosts[static_cast<std::size_t>(c.device_host[static_cast<std::size_t>(device)])];
        };
        EXPECT_EQ(host(rest, i), host(whole, before));
      }
      // It is written and read as any other.
      EXPECT_EQ(parse_cluster_yaml(print_cluster(rest), "rest").device_count(),
                rest.device_count());
    }
  }
}

TEST(WithoutDevice, UntilNoneIsLeft) {
  Cluster cluster = read_cluster("a100-80:2x2");
  cluster = without_device(cluster, DeviceId(0));
  cluster = without_device(cluster, DeviceId(0));
  EXPECT_EQ(cluster.hosts.size(), 1u);
  cluster = without_device(cluster, DeviceId(1));
  EXPECT_EQ(cluster.device_count(), 1);
  EXPECT_THROW(without_device(cluster, DeviceId(0)), Error);
}

}  // namespace
}  // namespace meshwright
