// Programs run with numbers give what one device gives.
#include "verify/evaluate.h"

#include <gmock/gmock.h>

#include "models/test_models.h"
#include "verify/test_plans.h"

namespace meshwright {
namespace {

constexpr TestModelSizes kTiny{.batch = 8,
                               .seq = 4,
                               .hidden = 4,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .ffn = 4,
                               .vocab = 6,
                               .layers = 2};

std::string difference(TestModelSizes sizes, const Degrees& degrees) {
  const Graph graph = test_model(sizes);
  const auto segments = find_segments(graph);
  const auto plan = test_plan(graph, segments, degrees, sizes.batch);
  if (!plan) return "no plan";
  Evaluator evaluator(*plan, graph, segments, 1);
  return evaluator.difference(lower(*plan, graph, segments));
}

TEST(Evaluate, OneDevice) { EXPECT_EQ(difference(kTiny, {.micro_batch = 4}), ""); }
TEST(Evaluate, DataParallel) { EXPECT_EQ(difference(kTiny, {.dp = 2}), ""); }
TEST(Evaluate, TensorParallel) { EXPECT_EQ(difference(kTiny, {.tp = 4}), ""); }
TEST(Evaluate, SequenceParallel) { EXPECT_EQ(difference(kTiny, {.tp = 2, .sp = true}), ""); }
TEST(Evaluate, ContextParallel) { EXPECT_EQ(difference(kTiny, {.cp = 2}), ""); }
TEST(Evaluate, Pipeline) {
  TestModelSizes sizes = kTiny;
  sizes.tied = true;
  EXPECT_EQ(difference(sizes, {.pp = 2, .dp = 2}), "");
}
TEST(Evaluate, StateSharding) {
  for (auto zero : {StateSharding::kZero1, StateSharding::kZero2, StateSharding::kZero3}) {
    EXPECT_EQ(difference(kTiny, {.dp = 2, .tp = 2, .zero = zero}), "");
  }
}
TEST(Evaluate, Recompute) {
  for (auto r : {Recompute::kSelective, Recompute::kFull}) {
    EXPECT_EQ(difference(kTiny, {.tp = 2, .sp = true, .recompute = r}), "");
  }
}
TEST(Evaluate, Experts) {
  TestModelSizes sizes = kTiny;
  sizes.experts = 4;
  EXPECT_EQ(difference(sizes, {.dp = 2, .ep = 2}), "");
}

}  // namespace
}  // namespace meshwright
