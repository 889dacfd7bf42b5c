#include "cost/price.h"

#include <gtest/gtest.h>

namespace meshwright {
namespace {

// Links at their full rate, no latency: times are plain divisions.
Efficiency plain() {
  Efficiency e;
  e.links["default"] = {1, 1, 1, 0, 0, Seconds(0)};
  e.memory.fraction = 1;
  return e;
}

Instr pass_over_memory(const DeviceKind& kind, Seconds time, int kernels) {
  Instr i;
  i.kernel = KernelClass::kMemory;
  i.traffic = Bytes(kind.memory_bandwidth.value * time.value);
  i.kernels = kernels;
  return i;
}

struct Setting {
  Cluster cluster = read_cluster("h100:1x8");
  Mesh mesh{{{"dp", 8, 1}}, 0};
  const DeviceKind& kind = cluster.kinds[0];
};

// The host runs ahead of the device: a block takes the longer of the two sums, not the sum of the
// longer of each.
TEST(Price, HostsLaunchAheadOfTheDevice) {
  const Setting s;
  Efficiency e = plain();
  e.launch = Seconds(10e-6);
  Pricer pricer(s.cluster, kAnalytic, std::vector<Efficiency>{e});
  const Instr large = pass_over_memory(s.kind, Seconds(50e-6), 1);
  const Instr small = pass_over_memory(s.kind, Seconds(1e-6), 1);
  const BlockTime device_bound = pricer.block({large, small, small}, s.mesh);
  EXPECT_NEAR(device_bound.serial.value, 52e-6, 1e-9);
  EXPECT_EQ(device_bound.host.value, 0);
  const BlockTime host_bound = pricer.block({small, small, small}, s.mesh);
  EXPECT_NEAR(host_bound.serial.value, 30e-6, 1e-9);
  EXPECT_NEAR(host_bound.host.value, 27e-6, 1e-9);
}

// CPUs have no 16-bit units, so only fp32 tells the slow one.
TEST(Price, SlowestKindWithoutSixteenBitUnits) {
  Setting s;
  DeviceKind& fast = s.cluster.kinds[0];
  fast.bf16 = fast.fp16 = FlopsPerSecond(0);
  DeviceKind slow = fast;
  slow.fp32 = FlopsPerSecond(fast.fp32.value / 4);
  slow.memory_bandwidth = BytesPerSecond(fast.memory_bandwidth.value / 4);
  s.cluster.kinds.push_back(slow);
  s.cluster.device_kind[5] = 1;
  Pricer pricer(s.cluster, kAnalytic, std::vector<Efficiency>{plain(), plain()});
  const Instr pass = pass_over_memory(s.cluster.kinds[0], Seconds(1e-3), 1);
  EXPECT_NEAR(pricer.price(pass, s.mesh).value, 4e-3, 1e-9);
}

TEST(Price, GradientsTravelInBuckets) {
  const Setting s;
  Efficiency e = plain();
  e.links["default"].base = Seconds(1e-3);
  Instr reduce;
  reduce.kind = InstrKind::kCollective;
  reduce.collective = CollectiveKind::kReduceScatter;
  reduce.purpose = Purpose::kGradient;
  reduce.group = {0};
  reduce.bytes = Bytes(1e9);
  const double whole =
      Pricer(s.cluster, kAnalytic, std::vector<Efficiency>{e}).price(reduce, s.mesh).value;
  e.bucket = Bytes(3e8);
  const double buckets =
      Pricer(s.cluster, kAnalytic, std::vector<Efficiency>{e}).price(reduce, s.mesh).value;
  EXPECT_NEAR(buckets - whole, 3e-3, 1e-9);
  reduce.purpose = Purpose::kTensor;
  EXPECT_NEAR(Pricer(s.cluster, kAnalytic, std::vector<Efficiency>{e}).price(reduce, s.mesh).value,
              whole, 1e-12);
}

TEST(Price, WhatIsKeptIsNotGatheredAgain) {
  const Setting s;
  Efficiency e = plain();
  Instr gather;
  gather.kind = InstrKind::kCollective;
  gather.collective = CollectiveKind::kAllGather;
  gather.purpose = Purpose::kTensor;
  gather.group = {0};
  gather.bytes = Bytes(1e9);
  gather.regather = true;
  EXPECT_GT(
      Pricer(s.cluster, kAnalytic, std::vector<Efficiency>{e}).block({gather}, s.mesh).serial.value,
      0);
  e.keeps_gathered = 1;
  EXPECT_EQ(
      Pricer(s.cluster, kAnalytic, std::vector<Efficiency>{e}).block({gather}, s.mesh).serial.value,
      0);
}

}  // namespace
}  // namespace meshwright
