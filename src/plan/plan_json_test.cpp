#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/test_models.h"
#include "plan/plan.h"

namespace meshwright {
namespace {

struct Made {
  Graph graph = test_model({.experts = 8});
  std::vector<Segment> segments = find_segments(graph);
  Cluster cluster;
  Plan plan;
  Made() {
    cluster.device_kind.assign(16, 0);
    plan = make_plan(graph, segments, cluster, {}, 16,
                     {.pp = 2,
                      .dp = 4,
                      .tp = 2,
                      .sp = true,
                      .ep = 4,
                      .micro_batch = 2,
                      .zero = StateSharding::kZero1},
                     {3});
  }
};

TEST(PlanJson, RoundTrips) {
  const Made m;
  const Json json = plan_to_json(m.plan, m.segments);
  const Plan back = plan_from_json(json, m.segments, "p.json");
  EXPECT_EQ(plan_to_json(back, m.segments).dump(), json.dump());
  EXPECT_EQ(back.stages[1].mesh, m.plan.stages[1].mesh);
  EXPECT_EQ(back.stages[1].roles, m.plan.stages[1].roles);
}

TEST(PlanJson, ReplicasAndRulesOfOrder) {
  Made m;
  m.plan = make_plan(m.graph, m.segments, m.cluster, {}, 16, {.pp = 2, .dp = 4}, {3}, "dualpipe");
  m.plan.order = {{{Phase::kForward, 0, PassSet::kAll}, {Phase::kWeight, 0, PassSet::kAll}},
                  {{Phase::kForward, 1, PassSet::kEach}, {Phase::kBackward, 1, PassSet::kEach}},
                  {{Phase::kForward, 1, 2}, {Phase::kForward, 1, 0}}};
  const Json json = plan_to_json(m.plan, m.segments);
  EXPECT_EQ(json.at("order").at(0).dump(),
            R"({"before":{"phase":"forward","chunk":0,"micro_batch":"all"},)"
            R"("after":{"phase":"weight","chunk":0,"micro_batch":"all"}})");
  const Plan back = plan_from_json(json, m.segments, "p.json");
  EXPECT_EQ(back.order, m.plan.order);
  ASSERT_EQ(back.chunks.size(), 4u);
  EXPECT_EQ(back.chunks[1].replica, 0);
  EXPECT_EQ(back.chunks[2].replica, 1);
}

TEST(PlanJson, ErrorsNameThePlace) {
  const Made m;
  const auto error = [&](auto&& change) -> std::string {
    Json json = plan_to_json(m.plan, m.segments);
    change(json);
    try {
      plan_from_json(json, m.segments, "p.json");
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  using testing::HasSubstr;
  EXPECT_THAT(error([](Json& j) { j["stages"][1]["axes"][0]["size"] = -3; }),
              HasSubstr("p.json: /stages/1/axes/0/size: must be between 1"));
  EXPECT_THAT(error([](Json& j) { j["chunks"][0]["last"] = "layers.99"; }),
              HasSubstr("/chunks/0/last: the model has no segment 'layers.99'"));
  EXPECT_THAT(error([](Json& j) { j["stages"][0]["roles"]["data"] = {"xp"}; }),
              HasSubstr("no axis is named 'xp'"));
  EXPECT_THAT(error([](Json& j) { j["version"] = 2; }), HasSubstr("/version"));
  EXPECT_THAT(error([](Json& j) { j["chunks"][1]["replica"] = 2; }),
              HasSubstr("/chunks/1/replica: must be between 0 and 1"));
  const auto rule = [&](const Json& before) {
    return error([&](Json& j) { j["order"] = {{{"before", before}, {"after", before}}}; });
  };
  EXPECT_THAT(rule({{"phase", "send"}, {"chunk", 0}, {"micro_batch", 0}}),
              HasSubstr("/order/0/before/phase: unknown pass 'send' (legal: forward, backward, "));
  EXPECT_THAT(rule({{"phase", "forward"}, {"chunk", 0}, {"micro_batch", "some"}}),
              HasSubstr("/order/0/before/micro_batch: unknown micro-batch 'some'"));
  EXPECT_THAT(rule({{"phase", "forward"}, {"chunk", -1}, {"micro_batch", 0}}),
              HasSubstr("/order/0/before/chunk: must be between 0"));
  EXPECT_THAT(error([](Json& j) { j.erase("chunks"); }), HasSubstr("key 'chunks' is missing"));
  EXPECT_THAT(error([](Json& j) { j["micro_batches"] = 3; }), HasSubstr("do not divide"));
}

}  // namespace
}  // namespace meshwright
