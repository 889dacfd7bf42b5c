#include "cluster/cluster.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace meshwright {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string check_error(const Cluster& cluster) {
  try {
    check_cluster(cluster);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string level_of(const Cluster& cluster, std::vector<int> ids) {
  std::vector<DeviceId> devices;
  for (const int id : ids) devices.emplace_back(id);
  return cluster.domains[static_cast<std::size_t>(smallest_domain(cluster, devices))].name;
}

TEST(Cluster, SmallestDomain) {
  const Cluster cluster = read_cluster("dgx-1:64");  // Quads in hosts in racks of 32 under a spine.
  EXPECT_EQ(level_of(cluster, {5}), "d5");
  EXPECT_EQ(level_of(cluster, {5, 5}), "d5");
  EXPECT_EQ(level_of(cluster, {0, 3}), "nvlink0");
  EXPECT_EQ(level_of(cluster, {7, 4, 5}), "nvlink1");
  EXPECT_EQ(level_of(cluster, {3, 4}), "host0");
  EXPECT_EQ(level_of(cluster, {7, 8}), "rack0");
  EXPECT_EQ(level_of(cluster, {256, 511}), "rack1");
  EXPECT_EQ(level_of(cluster, {255, 256}), "spine0");
  EXPECT_EQ(level_of(cluster, {511, 0}), "spine0");
  EXPECT_THROW(smallest_domain(cluster, {}), InternalError);
  EXPECT_THROW(smallest_domain(cluster, {DeviceId(512)}), InternalError);
  EXPECT_THROW(smallest_domain(cluster, {DeviceId()}), InternalError);
}

TEST(Cluster, DescribeDrawsEqualSubtreesOnce) {
  EXPECT_EQ(
      describe(read_cluster("dgx-h100:64")),
      "dgx-h100:64: 512 devices in 64 hosts, 2.0 TiB of RAM each\n"
      "spine (512 devices)\n"
      "  2 x rack (256 devices): ib 12800 GB/s (102400 Gb/s), one device at most 50 GB/s (400 "
      "Gb/s), +1.0 us\n"
      "    32 x host (8 devices): ib 400 GB/s (3200 Gb/s), one device at most 50 GB/s (400 "
      "Gb/s), +5.0 us\n"
      "      8 x h100-sxm-80: nvlink 450 GB/s (3600 Gb/s), +1.5 us\n"
      "512 h100-sxm-80: 79.1 GiB at 3350 GB/s, fp32 66.9, tf32 494.7, bf16 989.4, fp16 989.4, "
      "fp8 1979 TFLOP/s\n");
  const std::string mixed = describe(read_cluster("dgx-a100:2+mi300x-8:1"));
  EXPECT_THAT(mixed, AllOf(HasSubstr("\n  2 x host (8 devices)"), HasSubstr("\n  host (8 devices)"),
                           HasSubstr("64 GB/s (512 Gb/s) between two"),
                           HasSubstr("\n16 a100-sxm-80"), HasSubstr("\n8 mi300x")));
  EXPECT_THAT(describe(read_cluster("h100:1")), HasSubstr("1 device in 1 host"));
}

TEST(Cluster, DescribeStaysShort) {
  Cluster cluster = read_cluster("dgx-h100:300");
  for (std::size_t i = 1; i < cluster.domains.size(); ++i) {
    cluster.domains[i].uplink = BytesPerSecond(1e9 + static_cast<double>(i));
  }
  const std::string text = describe(cluster);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 110);
  EXPECT_THAT(text, HasSubstr("  ...\n"));
}

TEST(Cluster, ListsEveryDeviceHostAndDomain) {
  const Cluster cluster = read_cluster("h100:2x4@eth25");
  const Json json = parse_json(list_cluster(cluster), "list");
  EXPECT_EQ(json["kinds"].size(), 1u);
  EXPECT_EQ(json["kinds"][0]["memory_bandwidth"], 3350e9);
  EXPECT_EQ(json["hosts"][1], (Json{{"name", "host1"}, {"first_device", 4}, {"device_count", 4}}));
  ASSERT_EQ(json["devices"].size(), 8u);
  EXPECT_EQ(json["devices"][7]["host"], 1);
  ASSERT_EQ(json["domains"].size(), 11u);
  const Json& host = json["domains"][6];
  EXPECT_EQ(host["name"], "host1");
  EXPECT_EQ(host["parent"], 0);
  EXPECT_EQ(host["uplink"], 25e9 / 8);
  EXPECT_EQ(host["latency"], 20e-6);
  EXPECT_EQ(json["domains"][static_cast<int>(json["devices"][7]["domain"])]["first_device"], 7);
}

TEST(Cluster, CheckFindsEveryBrokenInvariant) {
  const Cluster good = read_cluster("dgx-h100:2");
  EXPECT_EQ(check_error(good), "no error");
  const auto broken = [&](auto&& change) {
    Cluster bad = good;
    change(bad);
    return check_error(bad);
  };
  EXPECT_THAT(check_error(Cluster{}), HasSubstr("at least one device"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains.clear(); }), HasSubstr("no root"));
  EXPECT_THAT(broken([](Cluster& c) { c.device_kind[3] = 1; }), HasSubstr("no device kind 1"));
  EXPECT_THAT(broken([](Cluster& c) { c.device_host.pop_back(); }), HasSubstr("16 devices, but"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[0].parent = 0; }), HasSubstr("root has parent 0"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].parent = 1; }),
              HasSubstr("parent 1 does not come before"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].parent = -1; }),
              HasSubstr("parent -1 does not come before"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].uplink = BytesPerSecond(0); }),
              HasSubstr("\"host0\": uplink bandwidth is 0, which must be more than 0"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].uplink = BytesPerSecond(-1); }),
              HasSubstr("uplink bandwidth is -1"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].latency = Seconds(0.0 / 0.0); }),
              HasSubstr("latency is"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].name = "rack0"; }),
              HasSubstr("two domains have this name"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].name.clear(); }), HasSubstr("has no name"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].device_count = 7; }),
              AllOf(HasSubstr("d7"), HasSubstr("not all in its parent")));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].first_device = 1; }),
              HasSubstr("starts at device 1, where 0 was expected"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains[1].device_count = 2000000000; }),
              HasSubstr("are not among the 16"));
  EXPECT_THAT(broken([](Cluster& c) { c.domains.pop_back(); }), HasSubstr("hold 7 of its 8"));
  EXPECT_THAT(broken([](Cluster& c) { c.device_domain[0] = 1; }),
              HasSubstr("a leaf must be exactly one device"));
  EXPECT_THAT(broken([](Cluster& c) { c.device_host[15] = 3; }),
              HasSubstr("is in host 3, where 1 was expected"));
  EXPECT_THAT(broken([](Cluster& c) { c.hosts.pop_back(); }), HasSubstr("1 host names for 2"));
  EXPECT_THAT(broken([](Cluster& c) { c.kinds[0].memory = Bytes(0); }),
              HasSubstr("\"h100-sxm-80\": memory is 0"));
  EXPECT_THAT(broken([](Cluster& c) { c.kinds.push_back(c.kinds[0]); }),
              HasSubstr("two device kinds have this name"));
}

}  // namespace
}  // namespace meshwright
