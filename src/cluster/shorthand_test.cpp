#include "cluster/shorthand.h"

#include <gmock/gmock.h>

#include <chrono>

#include "base/error.h"
#include "cluster/catalogue.h"

namespace meshwright {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(std::string_view text) {
  try {
    read_cluster(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::vector<std::string> levels(const Cluster& cluster) {
  std::vector<std::string> path;
  for (int d = cluster.device_domain[0]; d >= 0;
       d = cluster.domains[static_cast<std::size_t>(d)].parent) {
    path.push_back(cluster.domains[static_cast<std::size_t>(d)].level);
  }
  return path;
}

const Domain& host_of_first(const Cluster& cluster) {
  return cluster.domains[static_cast<std::size_t>(
      cluster.domains[static_cast<std::size_t>(cluster.device_domain[0])].parent)];
}

TEST(Shorthand, DgxH100) {
  const Cluster cluster = read_cluster("dgx-h100:8");
  EXPECT_EQ(cluster.name, "dgx-h100:8");
  EXPECT_EQ(cluster.device_count(), 64);
  EXPECT_TRUE(cluster.homogeneous());
  EXPECT_EQ(cluster.kind(DeviceId(63)).name, "h100-sxm-80");
  EXPECT_THAT(levels(cluster), ElementsAre("device", "host", "rack"));
  EXPECT_EQ(cluster.device_host[7], 0);
  EXPECT_EQ(cluster.device_host[8], 1);
  EXPECT_EQ(cluster.hosts.back(), "host7");
  const Domain& host = host_of_first(cluster);
  EXPECT_EQ(host.uplink.value, 8 * 50e9);
  EXPECT_EQ(host.lane.value, 50e9);
  EXPECT_EQ(host.link, "ib");
  EXPECT_EQ(host.latency.value, 5e-6);
  const Domain& device = cluster.domains[static_cast<std::size_t>(cluster.device_domain[0])];
  EXPECT_EQ(device.uplink.value, 450e9);
  EXPECT_EQ(device.link, "nvlink");
  EXPECT_EQ(cluster.host_memory.value, 0x1p41);
}

TEST(Shorthand, RacksAppearWhenThereAreSeveral) {
  const Cluster cluster = read_cluster("dgx-h100:64");
  EXPECT_THAT(levels(cluster), ElementsAre("device", "host", "rack", "spine"));
  const Domain& rack = cluster.domains[1];
  EXPECT_EQ(rack.device_count, 256);
  EXPECT_EQ(rack.uplink.value, 32 * 400e9);
  EXPECT_EQ(rack.lane.value, 50e9);
  EXPECT_EQ(rack.latency.value, 1e-6);
}

TEST(Shorthand, HostsTimesDevicesWithNetwork) {
  const Cluster ib = read_cluster("a100-80:4x8@ib200");
  EXPECT_EQ(ib.device_count(), 32);
  EXPECT_EQ(host_of_first(ib).uplink.value, 8 * 25e9);
  EXPECT_EQ(host_of_first(ib).lane.value, 25e9);
  const Cluster nics = read_cluster("a100-80:4x8@ib200x4");
  EXPECT_EQ(host_of_first(nics).uplink.value, 4 * 25e9);
  EXPECT_EQ(host_of_first(nics).lane.value, 25e9);
  const Cluster eth = read_cluster("a100-80:4x8@eth100");
  EXPECT_EQ(host_of_first(eth).uplink.value, 12.5e9);
  EXPECT_EQ(host_of_first(eth).lane.value, 0);
  EXPECT_EQ(host_of_first(eth).latency.value, 20e-6);
  const Cluster usual = read_cluster("h100:2x4");
  EXPECT_EQ(host_of_first(usual).uplink.value, 4 * 50e9);
  const Cluster replaced = read_cluster("dgx-h100:2@eth25");
  EXPECT_EQ(host_of_first(replaced).uplink.value, 25e9 / 8);
  // Four 100 Gb/s NICs per device, as in AWS p5.
  EXPECT_EQ(host_of_first(read_cluster("p5:2")).lane.value, 50e9);
}

TEST(Shorthand, OneHostIsTheRoot) {
  const Cluster one = read_cluster("h100:8");
  EXPECT_EQ(one.device_count(), 8);
  EXPECT_THAT(levels(one), ElementsAre("device", "host"));
  EXPECT_EQ(one.domains[0].uplink.value, 0);
  EXPECT_EQ(read_cluster("h100:1x1").device_count(), 1);
  EXPECT_EQ(read_cluster("h100").device_count(), 1);
  EXPECT_EQ(read_cluster("dgx-h100").device_count(), 8);
  EXPECT_EQ(read_cluster("a100-80:1x16").device_count(), 16);
}

TEST(Shorthand, DirectLinksLimitPairs) {
  EXPECT_EQ(read_cluster("mi300x-8:1").domains[0].pair_limit.value, 64e9);
  const Cluster dgx1 = read_cluster("dgx-1:2");
  EXPECT_THAT(levels(dgx1), ElementsAre("device", "nvlink", "host", "rack"));
  EXPECT_EQ(host_of_first(dgx1).uplink.value, 150e9);
  EXPECT_EQ(host_of_first(dgx1).pair_limit.value, 25e9);
  // Four of the eight: the quad is the host.
  EXPECT_EQ(read_cluster("v100:4").domains[0].pair_limit.value, 25e9);
  EXPECT_EQ(read_cluster("h100:8").domains[0].pair_limit.value, 0);
}

TEST(Shorthand, PcieHostsHaveSockets) {
  const Cluster cluster = read_cluster("l40s:2x8");
  EXPECT_THAT(levels(cluster), ElementsAre("device", "socket", "host", "rack"));
  EXPECT_EQ(cluster.domains[static_cast<std::size_t>(cluster.device_domain[0])].link, "pcie");
}

TEST(Shorthand, IslandsAcrossHosts) {
  const Cluster one = read_cluster("gb200-nvl72:1");
  EXPECT_EQ(one.device_count(), 72);
  EXPECT_EQ(one.hosts.size(), 18u);
  EXPECT_THAT(levels(one), ElementsAre("device", "nvlink"));
  const Cluster eight = read_cluster("gb200-nvl72:8");
  EXPECT_EQ(eight.device_count(), 576);
  EXPECT_THAT(levels(eight), ElementsAre("device", "nvlink", "spine"));
  EXPECT_EQ(eight.domains[1].uplink.value, 72 * 50e9);
  EXPECT_EQ(eight.domains[1].lane.value, 50e9);
  EXPECT_EQ(eight.domains[1].link, "ib");
  EXPECT_THAT(levels(read_cluster("tpu-v5p-slice:16")), ElementsAre("device", "ici"));
  EXPECT_THAT(levels(read_cluster("v5e:128x4")), ElementsAre("device", "ici", "spine"));
}

TEST(Shorthand, Mixed) {
  const Cluster cluster = read_cluster("dgx-a100:2+dgx-h100:2");
  EXPECT_EQ(cluster.device_count(), 32);
  EXPECT_FALSE(cluster.homogeneous());
  EXPECT_EQ(cluster.kind(DeviceId(0)).name, "a100-sxm-80");
  EXPECT_EQ(cluster.kind(DeviceId(31)).name, "h100-sxm-80");
  EXPECT_EQ(cluster.domains[0].level, "spine");
  EXPECT_THAT(cluster.hosts, ElementsAre("host0", "host1", "host2", "host3"));
  EXPECT_TRUE(read_cluster("h100:8 + dgx-h100:1").homogeneous());
}

TEST(Shorthand, Cpu) {
  const Cluster four = read_cluster("cpu:4");
  EXPECT_EQ(four.device_count(), 4);
  EXPECT_EQ(four.domains[1].link, "shm");
  EXPECT_GT(four.host_memory.value, 0x1p28);
  EXPECT_NEAR(four.kinds[0].memory.value * 4, four.host_memory.value, 1);
  EXPECT_NEAR(read_cluster("cpu:2").kinds[0].fp32.value, 2 * four.kinds[0].fp32.value, 1);
  EXPECT_THAT(error_of("cpu:2+cpu:4"), HasSubstr("equally many devices"));
}

TEST(Shorthand, EveryPresetAndDeviceBuilds) {
  for (const HostPreset& preset : host_presets()) {
    if (preset.device.empty()) continue;
    for (const char* count : {"1", "2", "5", "40"}) {
      EXPECT_EQ(error_of(preset.name + ":" + count), "no error") << preset.name;
    }
  }
  for (const DeviceKind& kind : device_catalogue()) {
    for (const char* count : {"1", "2", "4", "1x3", "3x4", "2x16@ib100", "100x2@eth10x2"}) {
      EXPECT_EQ(error_of(kind.name + ":" + count), "no error") << kind.name << ':' << count;
    }
  }
}

TEST(Shorthand, Refused) {
  EXPECT_THAT(
      error_of("dgx-h100:0"),
      AllOf(HasSubstr("cluster \"dgx-h100:0\": 0 hosts: it must be between 1 and 1,048,576"),
            HasSubstr("dgx-h100:8")));
  EXPECT_THAT(error_of("dgx-h100:99999999999"), HasSubstr("between 1 and 1,048,576"));
  EXPECT_THAT(error_of("dgx-h100:99999999999999999999999999"), HasSubstr("between 1 and"));
  EXPECT_THAT(error_of("dgx-h100:131073"), HasSubstr("1,048,584 devices are more than the limit"));
  EXPECT_THAT(error_of("dgx-h100:8x"),
              AllOf(HasSubstr("\"8x\" is not a number of hosts"), HasSubstr("e.g. dgx-h100:8")));
  EXPECT_THAT(error_of("dgx-h100:-1"), HasSubstr("\"-1\" is not a number of hosts"));
  EXPECT_THAT(error_of("dgx-h100:"), HasSubstr("\"\" is not a number of hosts"));
  EXPECT_THAT(error_of("dgx-h100:2x4"), HasSubstr("\"2x4\" is not a number of hosts"));
  EXPECT_THAT(error_of("dgx-h1000:8"),
              AllOf(HasSubstr("unknown host or device \"dgx-h1000\""), HasSubstr("dgx-h100,")));
  EXPECT_THAT(error_of("h100:64"),
              AllOf(HasSubstr("one host with 64 devices"), HasSubstr("h100:8x8 is 8 hosts of 8"),
                    HasSubstr("h100:1x64")));
  EXPECT_THAT(error_of("h100:4x"), HasSubstr("\"\" is not a number of devices per host"));
  EXPECT_THAT(error_of("h100:x8"), HasSubstr("\"\" is not a number of hosts"));
  EXPECT_THAT(error_of("h100:4x8x2"), HasSubstr("\"8x2\" is not a number"));
  EXPECT_THAT(error_of("h100:1x2000"), HasSubstr("2,000 devices in one host: at most 1,024"));
  EXPECT_THAT(error_of("h100:4x8@"), HasSubstr("unknown network \"\""));
  EXPECT_THAT(error_of("h100:4x8@wifi6"),
              AllOf(HasSubstr("unknown network \"wifi6\""), HasSubstr("@ib200x4")));
  EXPECT_THAT(error_of("h100:4x8@ib"), HasSubstr("\"\" is not a number of Gb/s"));
  EXPECT_THAT(error_of("h100:4x8@ib0"), HasSubstr("0 Gb/s: it must be between 1"));
  EXPECT_THAT(error_of("h100:4x8@ib200000"), HasSubstr("at most 100,000"));
  EXPECT_THAT(error_of("h100:4x8@ib200x0"), HasSubstr("0 NICs"));
  EXPECT_THAT(error_of("h100:4x8@ib200x5000"), HasSubstr("5,000 NICs in a host"));
  EXPECT_THAT(error_of(""), HasSubstr("name of a host or a device is missing"));
  EXPECT_THAT(error_of("dgx-h100:2+"), HasSubstr("name of a host or a device is missing"));
  EXPECT_THAT(error_of(":8"), HasSubstr("name of a host or a device is missing"));
  EXPECT_THAT(error_of(std::string(5000, 'a')), HasSubstr("longer than 4096"));
  std::string many = "t4:1";
  for (int i = 0; i < 100; ++i) many += "+t4:1";
  EXPECT_THAT(error_of(many), HasSubstr("more than 64 parts"));
  EXPECT_THAT(error_of("no-such-file.yaml"), HasSubstr("no such file"));
  EXPECT_THAT(error_of("lab.yml2"), HasSubstr("must exist or end in .yaml"));
}

TEST(Shorthand, LargeClustersAreQuickToBuild) {
  const auto start = std::chrono::steady_clock::now();
  const Cluster cluster = read_cluster("dgx-h100:2048");
  const Cluster copy = cluster;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(copy.device_count(), 16384);
  // Far above what it takes, so that a busy machine does not fail it; a quadratic step would.
  EXPECT_LT(took.count(), 0.5);
  const std::size_t bytes = copy.domains.capacity() * sizeof(Domain) +
                            3 * copy.device_kind.capacity() * sizeof(int) +
                            copy.hosts.capacity() * sizeof(std::string);
  EXPECT_LT(bytes, 4u << 20);
  EXPECT_EQ(read_cluster("dgx-h100:131072").device_count(), 1 << 20);
}

}  // namespace
}  // namespace meshwright
