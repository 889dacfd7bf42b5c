#include <gtest/gtest.h>

#include "base/error.h"
#include "cost/cost_model.h"
#include "cost/memory.h"

namespace meshwright {
namespace {

Instr matmul(double m, double n, double k) {
  Instr i;
  i.kernel = KernelClass::kMatmul;
  i.matmul = {1, m, n, k};
  i.flops = Flops(2 * m * n * k);
  i.traffic = Bytes(2 * (m * k + k * n + m * n));
  i.kernels = 1;
  return i;
}

TEST(Analytic, LargeProductsReachTheFittedShareOfThePeak) {
  const DeviceKind& kind = find_device("a100-80");
  const Efficiency e = efficiency_for(kind);
  const Instr i = matmul(16384, 16384, 16384);
  const double share = i.flops.value / kAnalytic.compute(i, kind, e).value / kind.bf16.value;
  EXPECT_LE(share, e.matmul_16bit.fraction / e.compute_scale + 1e-9);
  EXPECT_GE(share, e.matmul_16bit.fraction / e.compute_scale * 0.95);
}

TEST(Analytic, SmallProductsAreLessEfficientAndNothingIsFree) {
  const DeviceKind& kind = find_device("h100");
  const Efficiency e = efficiency_for(kind);
  double previous = 1e30;
  for (double size : {8192.0, 2048.0, 512.0, 128.0}) {
    const Instr i = matmul(size, size, size);
    const double rate = i.flops.value / kAnalytic.compute(i, kind, e).value;
    EXPECT_LT(rate, previous);
    previous = rate;
  }
  EXPECT_GT(kAnalytic.compute(matmul(1, 1, 1), kind, e).value, 0);
}

CommMesh one_level(int n, double bandwidth) {
  CommMesh c;
  c.group_size = n;
  c.levels = {{"device", 1, n, BytesPerSecond(bandwidth), Seconds(1e-6)}};
  return c;
}

TEST(Analytic, CollectivesScaleWithBytesAndBandwidth) {
  const Efficiency e = efficiency_for(find_device("h100"));
  const Bytes big(1e9);
  const auto time = [&](CollectiveKind kind, Bytes bytes, double bandwidth) {
    return kAnalytic.collective(kind, bytes, one_level(8, bandwidth), e).value;
  };
  // 7/8 of the bytes cross each device's link in an all_gather.
  EXPECT_NEAR(time(CollectiveKind::kAllGather, big, 450e9),
              1e9 * 7 / 8 / (450e9 * e.link("device").fraction), 3e-4);
  EXPECT_GT(time(CollectiveKind::kAllReduce, big, 450e9),
            time(CollectiveKind::kAllGather, big, 450e9));
  EXPECT_LT(time(CollectiveKind::kAllGather, big, 900e9),
            time(CollectiveKind::kAllGather, big, 450e9));
  EXPECT_EQ(kAnalytic.collective(CollectiveKind::kAllReduce, big, one_level(1, 1), e).value, 0);
}

TEST(Efficiency, UnknownEnginesAreErrors) {
  EXPECT_THROW(efficiency_for(find_device("h100"), "nosuch"), Error);
}

// 16 bytes per parameter with fp32 gradients would be 18 (Rajbhandari et al. 2020, section 3): 2 +
// 4 + 12.
TEST(Memory, StateShardingDividesWhatItShould) {
  SegmentProgram segment;
  segment.parameters = {{ValueId(0), 1e9, 1, false, false}};
  Stage stage;
  stage.mesh.axes = {{"dp", 4, 1}};
  stage.roles.data = {0};
  const auto memory = [&](StateSharding state) {
    stage.state = state;
    stage.state_axes = state == StateSharding::kNone ? AxisList{} : AxisList{0};
    StageContents contents;
    contents.held.push_back({&segment, 3, 1});
    return stage_memory(contents, stage, {}, {});
  };
  EXPECT_EQ(memory(StateSharding::kNone).parameters.value, 3e9 * 2);
  EXPECT_EQ(memory(StateSharding::kNone).gradients.value, 3e9 * 4);
  EXPECT_EQ(memory(StateSharding::kNone).optimizer.value, 3e9 * 12);
  EXPECT_EQ(memory(StateSharding::kZero1).optimizer.value, 3e9 * 12 / 4);
  EXPECT_EQ(memory(StateSharding::kZero1).gradients.value, 3e9 * 4);
  EXPECT_EQ(memory(StateSharding::kZero2).gradients.value, 3e9 * 4 / 4);
  EXPECT_LT(memory(StateSharding::kZero3).parameters, memory(StateSharding::kZero2).parameters);
}

}  // namespace
}  // namespace meshwright
