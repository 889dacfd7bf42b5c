#include "cost/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cost/price.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

MeasuredKernel kernel(double seconds, KernelClass kind, double flops, double traffic) {
  MeasuredKernel k;
  k.time = {Seconds(seconds), Seconds(seconds / 10), 15};
  k.kernel = kind;
  k.flops = Flops(flops);
  k.traffic = Bytes(traffic);
  return k;
}

ProfileTable small_table() {
  ProfileTable t;
  t.device = "core";
  t.dtype = "float32";
  t.host = "here";
  t.date = "2026-01-01";
  t.kernels["linear forward f32[2,4] f32[4,4] -> f32[2,4]"] =
      kernel(2e-3, KernelClass::kMatmul, 1e9, 1e6);
  t.kernels["add backward f32[2] -> f32[2]"] = kernel(1e-3, KernelClass::kMemory, 0, 1e6);
  t.curves["all_reduce of 2: 1 x 2 host (eth, 1)"] = {
      {1000, {Seconds(1), Seconds(0.1), 5}},
      {2000, {Seconds(3), Seconds(0.1), 5}},
  };
  return t;
}

TEST(Profile, SurvivesPrinting) {
  const Json json = profile_to_json(small_table());
  EXPECT_EQ(profile_to_json(profile_from_json(json, "t")), json);
  EXPECT_EQ(profile_from_json(json, "t").curves, small_table().curves);
}

std::string fault_of(const std::function<void(Json&)>& change) {
  Json json = profile_to_json(small_table());
  change(json);
  try {
    profile_from_json(json, "t");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Profile, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(fault_of([](Json& j) { j["format"] = "x"; }), HasSubstr("not a profile"));
  EXPECT_THAT(fault_of([](Json& j) { j["version"] = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(fault_of([](Json& j) { j.erase("device"); }), HasSubstr("key 'device' is missing"));
  EXPECT_THAT(fault_of([](Json& j) { j["devise"] = 1; }), HasSubstr("did you mean 'device'?"));
  EXPECT_THAT(fault_of([](Json& j) { j["threads"] = 1.5; }),
              HasSubstr("t/threads: must be an integer"));
  EXPECT_THAT(fault_of([](Json& j) { j["kernels"] = Json::object(); }),
              HasSubstr("must be a list"));
  EXPECT_THAT(
      fault_of([](Json& j) { j["kernels"][1]["signature"] = j["kernels"][0]["signature"]; }),
      HasSubstr("t/kernels/1/signature: a second entry"));
  EXPECT_THAT(fault_of([](Json& j) { j["kernels"][0]["seconds"] = -1; }),
              HasSubstr("t/kernels/0/seconds: must be 0 to 1e+09: -1"));
  EXPECT_THAT(fault_of([](Json& j) { j["kernels"][0]["class"] = "magic"; }),
              HasSubstr("known: view, memory, matmul, attention"));
  EXPECT_THAT(fault_of([](Json& j) { j["kernels"][0]["flops"] = 1e30; }), HasSubstr("/flops"));
  EXPECT_THAT(fault_of([](Json& j) { j["kernels"][0]["dtype"] = "f31"; }), HasSubstr("f31"));
  EXPECT_THAT(fault_of([](Json& j) { j["curves"][0]["points"] = Json::array(); }),
              HasSubstr("has no point"));
  EXPECT_THAT(fault_of([](Json& j) {
                j["curves"][0]["points"][1]["bytes"] = j["curves"][0]["points"][0]["bytes"];
              }),
              HasSubstr("a second point of 1000 bytes"));
  EXPECT_THAT(fault_of([](Json& j) { j = Json::array(); }), HasSubstr("must be an object"));
}

TEST(Profile, InterpolatesBetweenSizesAndNotFarBeyond) {
  const MeasuredCurve curve = small_table().curves.begin()->second;
  const auto at = [&](double bytes) {
    const auto t = interpolate(curve, Bytes(bytes));
    return t ? t->value : -1;
  };
  EXPECT_EQ(at(1000), 1);
  EXPECT_EQ(at(1500), 2);
  EXPECT_EQ(at(2000), 3);
  EXPECT_EQ(at(500), 0.5);
  EXPECT_EQ(at(4000), 6);
  EXPECT_EQ(at(499), -1);
  EXPECT_EQ(at(4001), -1);
  EXPECT_FALSE(interpolate({}, Bytes(1)));
}

struct Setting {
  Cluster cluster = read_cluster("a100-80:1x8");
  Mesh mesh{{{"dp", 8, 1}}, 0};
  std::vector<Efficiency> efficiency{efficiency_for(cluster.kinds[0])};
  Graph graph;
};

TEST(Profiled, TakesMeasurementsAndScalesTheRest) {
  Setting s;
  auto table = std::make_shared<ProfileTable>(small_table());
  Pricer pricer(s.cluster, find_cost_model("profiled"), s.efficiency);
  pricer.use_profile(table, s.graph);
  Pricer analytic(s.cluster, kAnalytic, s.efficiency);

  Instr known;
  known.measured = Seconds(0.25);
  EXPECT_EQ(pricer.price(known, s.mesh).value, 0.25);
  // Free for the analytic model, not for this engine.
  known.kind = InstrKind::kSlice;
  EXPECT_EQ(pricer.block({known}, s.mesh).serial.value, 0.25);
  EXPECT_EQ(pricer.coverage()->measured, 2);

  // A product that the table lacks takes as much longer than the analytic model says as its own do.
  const MeasuredKernel& product = table->kernels.at("linear forward f32[2,4] f32[4,4] -> f32[2,4]");
  const double ratio = product.time.seconds / analytic.price(product.instr(), s.mesh);
  Instr unknown = product.instr();
  unknown.flops *= 3;
  EXPECT_NEAR(pricer.price(unknown, s.mesh).value, ratio * analytic.price(unknown, s.mesh).value,
              1e-12);
  // No attention was measured: the ratio of all.
  unknown.kernel = KernelClass::kAttention;
  EXPECT_GT(pricer.price(unknown, s.mesh).value, 0);
  EXPECT_EQ(pricer.coverage()->measured, 2);
  EXPECT_EQ(pricer.coverage()->all, 4);
  EXPECT_EQ(to_string(*pricer.coverage()), "profiled: 2 of 4 instructions measured");
}

TEST(Profiled, CommunicationGoesByWhatTheGroupSpans) {
  Setting s;
  Instr reduce;
  reduce.kind = InstrKind::kCollective;
  reduce.collective = CollectiveKind::kAllReduce;
  reduce.group = {0};
  reduce.bytes = Bytes(1500);
  auto table = std::make_shared<ProfileTable>();
  const CommMesh comm = comm_mesh(s.cluster, s.mesh, {0});
  table->curves[communication_signature(CollectiveKind::kAllReduce, comm)] =
      small_table().curves.begin()->second;
  Pricer pricer(s.cluster, kProfiled, s.efficiency);
  pricer.use_profile(table, s.graph);
  EXPECT_EQ(pricer.price(reduce, s.mesh).value, 2);
  reduce.messages = 3;
  reduce.bytes = Bytes(3000);
  EXPECT_EQ(pricer.price(reduce, s.mesh).value, 3);
  EXPECT_EQ(pricer.coverage()->measured, 2);
  // Too large by far: as much longer than the largest as the analytic model says, and counted.
  reduce.messages = 1;
  reduce.bytes = Bytes(1e9);
  const auto says = [&](double bytes) {
    return kAnalytic.collective(CollectiveKind::kAllReduce, Bytes(bytes), comm, s.efficiency[0],
                                nullptr);
  };
  EXPECT_NEAR(pricer.price(reduce, s.mesh).value, 3 * (says(1e9) / says(2000)), 1e-6);
  reduce.collective = CollectiveKind::kAllGather;
  EXPECT_GT(pricer.price(reduce, s.mesh).value, 0);
  EXPECT_EQ(pricer.coverage()->measured, 2);
  EXPECT_EQ(pricer.coverage()->all, 4);
}

}  // namespace
}  // namespace meshwright
