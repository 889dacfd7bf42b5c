#include "ops/gradient_flow.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "models/test_models.h"
#include "ops/builder.h"

namespace meshwright {
namespace {

std::set<std::string> names(const Graph& graph, const std::vector<bool>& flags) {
  std::set<std::string> result;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) result.insert(graph.values[i].name);
  }
  return result;
}
using Names = std::set<std::string>;

TEST(GradientFlow, AModelNeedsEverythingButItsInputs) {
  const Graph graph = test_model({.layers = 2, .experts = 4});
  const std::vector<bool> needed = requires_gradient(graph);
  ASSERT_EQ(needed.size(), graph.values.size());
  for (std::size_t i = 0; i < needed.size(); ++i) {
    EXPECT_EQ(needed[i], graph.values[i].kind != ValueKind::kInput) << graph.values[i].name;
  }
}

// x -> a (w1) -> detach -> b (w2) -> loss; a also feeds a result that nobody reads.
TEST(GradientFlow, DetachCutsThePath) {
  GraphBuilder b("cut");
  const ValueId x = b.input("x", {DType::kBf16, {{"batch", 4}, {"hidden", 8}}});
  const ValueId labels = b.input("labels", {DType::kI64, {{"batch", 4}}});
  const ValueId a = b.linear("a", x, {"hidden", 8, 1}, false);
  b.op("relu", "unread", {a});
  const ValueId cut = b.op("detach", "cut", {a});
  const ValueId y = b.linear("b", cut, {"classes", 8, 1}, true);
  b.op("cross_entropy", "loss", {y, labels});
  const Graph graph = b.finish();
  const GradientFlow flow = gradient_flow(graph);
  EXPECT_EQ(names(graph, flow.depends),
            (Names{"a.weight", "a", "unread", "b.weight", "b.bias", "b", "loss"}));
  EXPECT_EQ(names(graph, flow.reaches), (Names{"cut", "b.weight", "b.bias", "b", "loss"}));
  EXPECT_EQ(names(graph, requires_gradient(graph)), (Names{"b.weight", "b.bias", "b", "loss"}));
}

TEST(GradientFlow, WhatOnlyInputsFeedHasNone) {
  GraphBuilder b("inputs");
  const ValueId x = b.input("x", {DType::kBf16, {{"batch", 4}, {"hidden", 8}}});
  const ValueId table = b.buffer("table", {DType::kBf16, {{"batch", 4}, {"hidden", 8}}});
  const ValueId sum = b.op("add", "sum", {x, table});
  b.linear("out", sum, {"hidden", 8, 1}, false);
  const Graph graph = b.finish();
  // Without a loss, results that nobody reads count as losses.
  EXPECT_EQ(names(graph, requires_gradient(graph)), (Names{"out.weight", "out"}));
  EXPECT_EQ(names(graph, gradient_flow(graph).reaches),
            (Names{"x", "table", "sum", "out.weight", "out"}));
}

TEST(GradientFlow, IntegersCutThePath) {
  GraphBuilder b("integers");
  const ValueId ids = b.input("ids", {DType::kI64, {{"batch", 4}}});
  const ValueId table = b.parameter("table", {{"vocab", 16, 1}, {"hidden", 8, 1}});
  const ValueId x = b.op("embedding", "embed", {ids, table});
  const ValueId y = b.linear("head", x, {"vocab", 16, 1}, false);
  b.op("cross_entropy", "loss", {y, ids});
  const Graph graph = b.finish();
  EXPECT_EQ(names(graph, gradient_flow(graph).reaches),
            (Names{"table", "embed", "head.weight", "head", "loss"}));
}

TEST(GradientFlow, AnEmptyGraphHasNoFlags) { EXPECT_TRUE(requires_gradient(Graph()).empty()); }

}  // namespace
}  // namespace meshwright
