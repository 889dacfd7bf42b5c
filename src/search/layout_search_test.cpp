#include "search/layout_search.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/error.h"
#include "models/test_models.h"
#include "search/judge.h"
#include "search/layout_estimate.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

struct Case {
  Graph graph;
  std::vector<Segment> segments;
  Cluster cluster;
  Problem problem() const { return {graph, segments, cluster, {}, batch}; }
  std::int64_t batch;

  Case(const TestModelSizes& sizes, const char* cluster_text)
      : graph(test_model(sizes)),
        segments(find_segments(graph)),
        cluster(read_cluster(cluster_text)),
        batch(sizes.batch) {}
};

// Large enough that splitting pays, small enough to judge every layout.
constexpr TestModelSizes kMedium{.batch = 16,
                                 .seq = 2048,
                                 .hidden = 1024,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_dim = 128,
                                 .ffn = 4096,
                                 .vocab = 32000,
                                 .layers = 6};

// The fastest of every legal combination on four devices that fits, in seconds (cuts as the search
// makes them).
double best_of_all_judged(const Case& c) {
  const Problem problem = c.problem();
  double best = std::numeric_limits<double>::infinity();
  const ModelFacts facts = model_facts(c.graph, c.segments);
  for (int pp : {1, 2, 4}) {
    for (int tp : {1, 2, 4}) {
      for (int cp : {1, 2, 4}) {
        if (pp * tp * cp > 4) continue;
        for (std::int64_t mbs : {1, 2, 4, 8, 16}) {
          for (int vpp : {1, 2, 3}) {
            for (const StateSharding zero :
                 {StateSharding::kNone, StateSharding::kZero1, StateSharding::kZero3}) {
              for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
                const Degrees d{.pp = pp,
                                .vpp = vpp,
                                .dp = 4 / (pp * tp * cp),
                                .cp = cp,
                                .tp = tp,
                                .sp = tp > 1,
                                .micro_batch = mbs,
                                .zero = zero,
                                .recompute = recompute};
                if (!degrees_legal(facts, 4, c.batch, d)) continue;
                const Judged j = judge_degrees(problem, d);
                if (j.fits) best = std::min(best, j.step().value);
              }
            }
          }
        }
      }
    }
  }
  return best;
}

TEST(LayoutSearch, FindsTheBestOfAllJudgedLayouts) {
  const Case c(kMedium, "a100-80:1x4");
  const SearchResult result = search_layouts(c.problem(), {});
  ASSERT_EQ(result.status, SearchStatus::kFound);
  // Estimates only choose what is simulated; within 1 % of the exhaustive best.
  EXPECT_LE(result.ranking[0].step().value, best_of_all_judged(c) * 1.01);
  for (const Judged& j : result.ranking) EXPECT_TRUE(j.fits);
}

// Stages that share a tied embedding exchange its gradients over the slow link between the hosts.
TEST(LayoutSearch, CountsTheSumOfTiedEmbeddings) {
  TestModelSizes sizes = kMedium;
  sizes.tied = true;
  sizes.batch = 96;
  sizes.vocab = 128000;
  const Case c(sizes, "rtx-3090:3x4@eth1");
  const SearchResult result = search_layouts(c.problem(), {});
  ASSERT_EQ(result.status, SearchStatus::kFound);
  const auto judged = [&](const Degrees& d) { return judge_degrees(c.problem(), d).step().value; };
  // Within 1 % of layouts that send an embedding shard only once.
  for (std::int64_t mbs : {1, 2, 4, 8}) {
    const double split = judged({.pp = 3, .tp = 4, .sp = true, .micro_batch = mbs});
    const double flat =
        judged({.dp = 3, .tp = 4, .sp = true, .micro_batch = mbs, .zero = StateSharding::kZero1});
    EXPECT_LE(result.ranking[0].step().value, 1.01 * std::min(split, flat)) << mbs;
  }
}

// Parameters that are gathered whole are there for a segment at a time, however many there are.
TEST(LayoutSearch, EstimatesTheMemoryOfShardedParameters) {
  TestModelSizes sizes = kMedium;
  sizes.layers = 48;
  const Case c(sizes, "a100-80:1x4");
  const Problem problem = c.problem();
  for (const StateSharding zero : {StateSharding::kZero1, StateSharding::kZero3}) {
    const Degrees d{.dp = 4, .zero = zero, .recompute = Recompute::kFull};
    const Judged judged = judge_degrees(problem, d);
    const double used = judged.timeline.memory[0].total().value;
    const double usable = usable_memory(problem, judged.plan.stages[0]).value;
    const double estimated = usable + LayoutEstimator(problem).estimate(d).overflow;
    EXPECT_NEAR(estimated / used, 1, 0.05) << state_sharding_name(zero);
  }
}

TEST(LayoutSearch, SameResultOnEveryRun) {
  const Case c(kMedium, "dgx-a100:2");
  const SearchResult a = search_layouts(c.problem(), {});
  const SearchResult b = search_layouts(c.problem(), {});
  ASSERT_EQ(a.ranking.size(), b.ranking.size());
  for (std::size_t i = 0; i < a.ranking.size(); ++i) {
    EXPECT_EQ(to_string(a.ranking[i].plan.degrees), to_string(b.ranking[i].plan.degrees));
    EXPECT_EQ(a.ranking[i].step().value, b.ranking[i].step().value);
  }
}

TEST(LayoutSearch, ObeysRestrictions) {
  const Case c(kMedium, "dgx-a100:2");
  Problem problem = c.problem();
  problem.restrictions.tp = {2, 4};
  problem.restrictions.pp = {2, 2};
  problem.restrictions.recompute = {Recompute::kFull};
  problem.restrictions.state = {StateSharding::kZero2};
  const SearchResult result = search_layouts(problem, {});
  ASSERT_FALSE(result.ranking.empty());
  for (const Judged& j : result.ranking) {
    EXPECT_EQ(j.plan.degrees.pp, 2);
    EXPECT_THAT(j.plan.degrees.tp, testing::AllOf(testing::Ge(2), testing::Le(4)));
    EXPECT_EQ(j.plan.degrees.recompute, Recompute::kFull);
  }
}

// A restriction never helps: on a slow network too the estimates must not hide the best layouts.
TEST(LayoutSearch, PinsDoNotBeatTheFreeSearch) {
  for (const char* cluster : {"a100-80:4x8@eth25", "a100-80:4x4@eth10", "dgx-a100:2"}) {
    const Case c(kMedium, cluster);
    Problem problem = c.problem();
    const double free = search_layouts(problem, {}).ranking.at(0).step().value;
    for (const int pin : {1, 2}) {
      for (Allowed Restrictions::* field :
           {&Restrictions::tp, &Restrictions::cp, &Restrictions::pp}) {
        Problem pinned = c.problem();
        pinned.restrictions.*field = {pin, pin};
        const SearchResult r = search_layouts(pinned, {});
        if (r.ranking.empty() || !r.ranking[0].fits) continue;
        EXPECT_GE(r.ranking[0].step().value, free * 0.98)
            << cluster << " " << to_string(r.ranking[0].plan.degrees);
        EXPECT_GE(r.ranking[0].step().value, r.lower_bound.value * (1 - 1e-9));
      }
    }
  }
}

// Unlike stages: the faster devices get more layers, and the bound holds.
TEST(LayoutSearch, MixedDevicesShareTheLayersBySpeed) {
  TestModelSizes sizes = kMedium;
  sizes.layers = 16;
  const Case c(sizes, "dgx-a100:1+dgx-h100:1");
  Problem problem = c.problem();
  problem.restrictions.pp = {2, 2};
  problem.restrictions.vpp = {1, 1};
  const SearchResult r = search_layouts(problem, {});
  ASSERT_FALSE(r.ranking.empty());
  const Plan& plan = r.ranking[0].plan;
  const auto segments_of = [&](std::size_t chunk) {
    return plan.chunks[chunk].last_segment - plan.chunks[chunk].first_segment;
  };
  EXPECT_GT(segments_of(1), segments_of(0));
  EXPECT_GE(r.ranking[0].step(), r.lower_bound);
}

TEST(LayoutSearch, MemoryDecides) {
  const Case c(kMedium, "a100-80:1x4");
  Problem problem = c.problem();
  problem.restrictions.max_memory = 0.02;
  const SearchResult result = search_layouts(problem, {});
  EXPECT_EQ(result.status, SearchStatus::kNothingFits);
  ASSERT_FALSE(result.ranking.empty());
  EXPECT_FALSE(result.ranking[0].fits);
}

TEST(LayoutSearch, MemoryObjectiveTradesTime) {
  const Case c(kMedium, "a100-80:1x4");
  Problem problem = c.problem();
  const auto most = [](const Judged& j) {
    double bytes = 0;
    for (const MemoryBreakdown& m : j.timeline.memory) bytes = std::max(bytes, m.total().value);
    return bytes;
  };
  const SearchResult fast = search_layouts(problem, {});
  problem.objective = Objective::kMemory;
  const SearchResult small = search_layouts(problem, {});
  ASSERT_FALSE(small.ranking.empty());
  EXPECT_LT(most(small.ranking[0]), most(fast.ranking[0]));
  EXPECT_GT(small.ranking[0].step(), fast.ranking[0].step());
}

TEST(LayoutSearch, StopsWhenAskedTo) {
  const Case c(kMedium, "dgx-a100:4");
  const std::atomic<bool> stop{true};
  SearchControl control;
  control.stop = &stop;
  const SearchResult result = search_layouts(c.problem(), control);
  EXPECT_THAT(result.status, testing::AnyOf(SearchStatus::kInterrupted, SearchStatus::kNothingLegal,
                                            SearchStatus::kNothingFits));
}

TEST(LayoutSearch, OddDeviceCountsLeaveDevicesIdle) {
  TestModelSizes sizes = kMedium;
  const Case c(sizes, "a100-80:1x7");
  const SearchResult result = search_layouts(c.problem(), {});
  ASSERT_FALSE(result.ranking.empty());
  EXPECT_LE(result.ranking[0].plan.degrees.devices(), 7);
}

TEST(Judge, IllegalDegreesNameTheLegalOnes) {
  const Case c(kMedium, "dgx-a100:1");
  try {
    judge_degrees(c.problem(), {.dp = 1, .tp = 3});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("heads = 8: legal tp are 1, 2, 4, 8"));
  }
}

}  // namespace
}  // namespace meshwright
