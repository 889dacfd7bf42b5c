#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  const double share =
      i.flops.value / kAnalytic.compute(i, kind, e, nullptr).value / kind.bf16.value;
  EXPECT_LE(share, e.matmul_16bit.fraction / e.compute_scale + 1e-9);
  EXPECT_GE(share, e.matmul_16bit.fraction / e.compute_scale * 0.95);
}

TEST(Analytic, SmallProductsAreLessEfficientAndNothingIsFree) {
  const DeviceKind& kind = find_device("h100");
  const Efficiency e = efficiency_for(kind);
  double previous = 1e30;
  for (double size : {8192.0, 2048.0, 512.0, 128.0}) {
    const Instr i = matmul(size, size, size);
    const double rate = i.flops.value / kAnalytic.compute(i, kind, e, nullptr).value;
    EXPECT_LT(rate, previous);
    previous = rate;
  }
  EXPECT_GT(kAnalytic.compute(matmul(1, 1, 1), kind, e, nullptr).value, 0);
}

TEST(Analytic, DoublePrecisionHasItsOwnRateOrHalf) {
  DeviceKind kind = find_device("cpu");
  const Efficiency e = efficiency_for(kind);
  Instr i = matmul(2048, 2048, 2048);
  const auto time = [&](DType dtype) {
    i.dtype = dtype;
    return kAnalytic.compute(i, kind, e, nullptr).value;
  };
  EXPECT_NEAR(time(DType::kF64) / time(DType::kF32), 2, 0.01);
  kind.fp64 = FlopsPerSecond(kind.fp32.value / 4);
  EXPECT_NEAR(time(DType::kF64) / time(DType::kF32), 4, 0.01);
}

CommMesh one_level(int n, double bandwidth) {
  CommMesh c;
  c.group_size = n;
  c.levels = {{"device", "nvlink", 1, n, BytesPerSecond(bandwidth), Seconds(1e-6)}};
  return c;
}

TEST(Analytic, CollectivesScaleWithBytesAndBandwidth) {
  const Efficiency e = efficiency_for(find_device("h100"));
  const Bytes big(1e9);
  const auto time = [&](CollectiveKind kind, Bytes bytes, double bandwidth) {
    return kAnalytic.collective(kind, bytes, one_level(8, bandwidth), e, nullptr).value;
  };
  // 7/8 of the bytes cross each device's link in an all_gather.
  EXPECT_NEAR(time(CollectiveKind::kAllGather, big, 450e9),
              1e9 * 7 / 8 / (450e9 * e.link("nvlink").fraction), 3e-4);
  EXPECT_GT(time(CollectiveKind::kAllReduce, big, 450e9),
            time(CollectiveKind::kAllGather, big, 450e9));
  EXPECT_LT(time(CollectiveKind::kAllGather, big, 900e9),
            time(CollectiveKind::kAllGather, big, 450e9));
  EXPECT_EQ(
      kAnalytic.collective(CollectiveKind::kAllReduce, big, one_level(1, 1), e, nullptr).value, 0);
}

// Sums are formed inside a host before they cross to the other one: between two hosts every byte
// crosses once per direction, not 2 * 15/16 times.
TEST(Analytic, AllReduceCrossesHostsWithSumsOnly) {
  Efficiency e;
  e.links["default"] = {1, 1, 1, 0, 0, Seconds(0)};
  CommMesh c;
  c.group_size = 16;
  c.levels = {{"device", "nvlink", 1, 16, BytesPerSecond(450e9), Seconds(0)},
              {"host", "ib", 8, 2, BytesPerSecond(200e9), Seconds(0)}};
  EXPECT_NEAR(kAnalytic.collective(CollectiveKind::kAllReduce, Bytes(1e9), c, e, nullptr).value,
              1e9 / 200e9, 1e-9);
  EXPECT_NEAR(kAnalytic.collective(CollectiveKind::kAllGather, Bytes(1e9), c, e, nullptr).value,
              1e9 * 15 / 16 / 200e9, 1e-9);
}

TEST(Analytic, UnfusedOperatorsMoveTheirTrafficSeveralTimes) {
  const DeviceKind& kind = find_device("a100-80");
  Efficiency e;
  Instr norm;
  norm.kernel = KernelClass::kMemory;
  norm.traffic = Bytes(1e9);
  norm.kernels = 1;
  const double fused = kAnalytic.compute(norm, kind, e, nullptr).value;
  e.memory_passes = 3;
  EXPECT_NEAR(kAnalytic.compute(norm, kind, e, nullptr).value, 3 * fused, 1e-12);
  EXPECT_EQ(kAnalytic.compute(matmul(4096, 4096, 4096), kind, e, nullptr).value,
            kAnalytic.compute(matmul(4096, 4096, 4096), kind, {}, nullptr).value);
}

const char* failure(const char* file, const char* engine) {
  static std::string text;
  try {
    efficiency_for(parse_json(file, "t.json"), find_device("h100"), engine);
    text = "no error";
  } catch (const Error& e) {
    text = e.where() + ": " + e.message();
  }
  return text.c_str();
}

TEST(Efficiency, UnknownEnginesAreErrors) {
  EXPECT_THROW(efficiency_for(find_device("h100"), "nosuch"), Error);
}

TEST(Efficiency, EnginesExtendOthers) {
  const Json file = parse_json(
      R"({"default": {"launch_us": 1}, "architectures": {"hopper": {"launch_us": 2}}, "engines": {
          "a": {"compute_scale": 1.5, "links": {"ib": {"fraction": 0.5}}},
          "b": {"extends": "a", "launch_us": 3}}})",
      "t.json");
  const Efficiency a = efficiency_for(file, find_device("h100"), "a");
  const Efficiency b = efficiency_for(file, find_device("h100"), "b");
  EXPECT_NEAR(a.launch.value, 2e-6, 1e-12);
  EXPECT_NEAR(b.launch.value, 3e-6, 1e-12);
  EXPECT_EQ(b.compute_scale, 1.5);
}

TEST(Efficiency, FaultyFilesAreErrors) {
  EXPECT_STREQ(failure(R"({"default": {}})", "a"),
               "efficiency file: must have an object 'architectures'");
  EXPECT_STREQ(
      failure(R"({"default": {}, "architectures": {}, "engines": {"a": {"extends": 1}}})", "a"),
      "efficiency: /engines/a/extends: must be an engine's name");
  EXPECT_STREQ(
      failure(R"({"default": {}, "architectures": {}, "engines": {"a": {"extends": "a"}}})", "a"),
      ": engine 'a' extends itself");
  EXPECT_STREQ(
      failure(R"({"default": {}, "architectures": {}, "engines": {"a": {"lunch_us": 1}}})", "a"),
      "efficiency: /engines/a: unknown key 'lunch_us'");
}

TEST(Memory, EnginesKeepMoreOrLess) {
  SegmentProgram segment;
  segment.saved = Bytes(100);
  segment.loss = Bytes(40);
  segment.gathered = Bytes(10);
  segment.forward_peak = Bytes(5);
  Efficiency e;
  EXPECT_EQ(saved_bytes(segment, e).value, 100);
  e.activation_scale = 1.5;
  e.keeps_gathered = 1;
  EXPECT_EQ(saved_bytes(segment, e).value, 60 * 1.5 + 40 + 10);
  e.loss_copies = 2;
  EXPECT_EQ(transient_bytes(segment, e).value, 80);
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
