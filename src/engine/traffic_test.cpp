// What ranks send is what the program says they send, to the byte.
#include "plan/traffic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/thread_run.h"
#include "models/test_models.h"
#include "plan/lower.h"
#include "plan/segments.h"

namespace meshwright {
namespace {

struct Case {
  const char* name;
  Degrees degrees;
  std::vector<int> cuts;
  std::int64_t experts = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Traffic : public testing::TestWithParam<Case> {};

TEST_P(Traffic, IsWhatTheProgramSays) {
  const Case& c = GetParam();
  TestModelSizes sizes = kSmallTestModel;
  sizes.experts = c.experts;
  Graph graph = test_model(sizes);
  for (Value& v : graph.values) {
    if (v.type.dtype == DType::kBf16) v.type.dtype = DType::kF32;
  }
  const std::vector<Segment> segments = find_segments(graph);
  Training training;
  training.dtype = DType::kF32;
  training.optimizer = "sgd";
  Plan plan =
      make_plan(graph, segments, read_cluster("a100-80:1x8"), training, 8, c.degrees, c.cuts);
  const Program program = lower(plan, graph, segments);
  ExecutorSettings settings;
  settings.numerics = parse_numerics("float32");
  const int steps = 2;
  const RunDifference run = run_threads(program, plan, graph, segments, steps, settings);
  const std::vector<double> said = sent_bytes(program, plan);
  for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
    const Mesh& mesh = program.lanes[lane].mesh;
    for (int i = 0; i < mesh.device_count(); ++i) {
      const int rank = device_at(mesh, mesh_coordinates(mesh, i)).value;
      EXPECT_EQ(run.bytes_sent[static_cast<std::size_t>(rank)],
                static_cast<std::int64_t>(steps * said[lane]))
          << "rank " << rank << " of lane " << lane;
    }
  }
}

Degrees degrees(int pp, int dp, int tp, bool sp, StateSharding zero) {
  Degrees d;
  d.pp = pp;
  d.dp = dp;
  d.tp = tp;
  d.sp = sp;
  d.zero = zero;
  return d;
}

std::vector<Case> cases() {
  std::vector<Case> list = {
      {"dp4", degrees(1, 4, 1, false, StateSharding::kNone), {}},
      {"zero1", degrees(1, 4, 1, false, StateSharding::kZero1), {}},
      {"zero3", degrees(1, 4, 1, false, StateSharding::kZero3), {}},
      {"tp2", degrees(1, 1, 2, false, StateSharding::kNone), {}},
      {"tp2_sp", degrees(1, 1, 2, true, StateSharding::kNone), {}},
      {"dp2_tp2_sp", degrees(1, 2, 2, true, StateSharding::kZero1), {}},
      {"pp2", degrees(2, 1, 1, false, StateSharding::kNone), {3}},
      {"pp2_dp2_tp2", degrees(2, 2, 2, true, StateSharding::kZero1), {3}},
  };
  Case ep{"ep4", degrees(1, 4, 1, false, StateSharding::kNone), {}, 8};
  ep.degrees.ep = 4;
  list.push_back(ep);
  Case cp{"cp2", degrees(1, 2, 1, false, StateSharding::kNone), {}};
  cp.degrees.cp = 2;
  list.push_back(cp);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Plans, Traffic, testing::ValuesIn(cases()),
                         [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace meshwright
