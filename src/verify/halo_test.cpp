#include <gmock/gmock.h>

#include "ops/builder.h"
#include "plan/lower.h"
#include "verify/evaluate.h"
#include "verify/mutate.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

// Two convolutions of windows that reach one row over the border of a part.
struct Convolutions {
  Graph graph;
  std::vector<Segment> segments;
  Plan plan;

  explicit Convolutions(int parts, int stride = 1, std::int64_t height = 12) {
    GraphBuilder b("images");
    ValueId x = b.input(
        "image", {DType::kF32, {{"batch", 4}, {"channels", 2}, {"height", height}, {"width", 6}}});
    for (int layer = 0; layer < 2; ++layer) {
      const auto scope = b.scope("layers." + std::to_string(layer));
      const std::int64_t in = layer == 0 ? 2 : 3;
      const ValueId w = b.parameter(
          "conv.weight", {{"features", 3}, {"channels", in}, {"kernel_y", 3}, {"kernel_x", 3}});
      x = b.op("relu", "act",
               {b.op("conv2d", "conv", {x, w},
                     {{"padding", std::int64_t{1}},
                      {"stride", std::int64_t{layer == 0 ? 1 : stride}}})});
    }
    graph = b.finish();
    segments = find_segments(graph);
    plan.global_batch = 4;
    plan.training.dtype = DType::kF32;
    Stage stage;
    stage.mesh.axes = {{"rows", parts, 1}, {"dp", 2, parts}};
    stage.roles.data = {1};
    plan.stages.push_back(stage);
    plan.chunks.push_back({0, 0, static_cast<int>(segments.size()), 0});
    auto overrides = std::make_shared<Overrides>();
    overrides->rules = {{false, {{"height", {"rows"}}}}};
    overrides->rule_of_op.assign(graph.ops.size(), 0);
    plan.overrides = overrides;
  }
  Program program() const { return lower(plan, graph, segments); }
};

TEST(Halo, NeighboursExchangeBorderRows) {
  for (const int parts : {2, 3, 4}) {
    Convolutions c(parts);
    for (const Recompute mode : {Recompute::kNone, Recompute::kFull}) {
      c.plan.stages[0].recompute = mode;
      const Program program = c.program();
      const VerifyReport report = verify(program, c.plan, c.graph, c.segments);
      EXPECT_TRUE(report.proved()) << to_string(report);
      int exchanges = 0;
      for (const SegmentProgram& s : program.segments) {
        for (const Instr& i : s.forward) {
          if (i.collective != CollectiveKind::kHalo) continue;
          ++exchanges;
          // Two rows of width 6 of every channel of the samples of one replica.
          const std::int64_t channels = s.segment == 0 ? 2 : 3;
          EXPECT_EQ(i.bytes.value, 2 * 6 * channels * 2 * 4);
        }
      }
      EXPECT_EQ(exchanges, 2);
    }
  }
}

TEST(Halo, AMissingOrNarrowExchangeIsFound) {
  const Convolutions c(2);
  Program program = c.program();
  for (SegmentProgram& s : program.segments) {
    for (Buffer& b : s.buffers) {
      if (b.halo.dim >= 0) b.halo.after = 0;
    }
  }
  const VerifyReport narrow = verify(program, c.plan, c.graph, c.segments);
  ASSERT_FALSE(narrow.proved());
  EXPECT_THAT(narrow.failure->message, HasSubstr("needs 1 rows before its part and 1 after"));
  program = c.program();
  for (SegmentProgram& s : program.segments) {
    for (Instr& i : s.forward) {
      if (i.collective == CollectiveKind::kHalo) i.group = {1};
    }
  }
  EXPECT_FALSE(verify(program, c.plan, c.graph, c.segments).proved());
}

TEST(Halo, StridesKeepTheirRows) {
  const Convolutions c(2, 2);
  const VerifyReport report = verify(c.program(), c.plan, c.graph, c.segments);
  EXPECT_TRUE(report.proved()) << to_string(report);
}

TEST(Halo, WhatCannotBeSplitIsRefused) {
  EXPECT_THAT([] { Convolutions(5).program(); },
              testing::ThrowsMessage<std::exception>(HasSubstr("'height'")));
  EXPECT_THAT([] { Convolutions(12, 1, 24).program(); },
              testing::Not(testing::Throws<std::exception>()));
}

// With numbers: rows of neighbours are there when windows reach for them, and no fault in their
// exchange is missed.
TEST(Halo, ComputesTheSameNumbersAndRejectsMutants) {
  for (const int parts : {2, 3}) {
    const Convolutions c(parts, 1, 6);
    const Program program = c.program();
    EXPECT_EQ(Evaluator(c.plan, c.graph, c.segments, 5).difference(program), "");
    const MutantReport report = judge_mutants(program, c.plan, c.graph, c.segments, 78, 5);
    EXPECT_EQ(report.total().missed, 0) << to_string(report);
  }
}

}  // namespace
}  // namespace meshwright
