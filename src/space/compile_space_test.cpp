#include "space/compile_space.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "models/test_models.h"
#include "plan/refine_classes.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

class CompileSpace : public testing::Test {
 protected:
  CompiledSpace compile(const std::string& rest) {
    return compile_space(parse_space("space: x\n" + rest, "f.yaml"), graph_, segments_);
  }
  std::string message(const std::string& rest) {
    try {
      compile(rest);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  const OpOverride* override_of(const CompiledSpace& space, std::string_view name) {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (graph_.ops[i].name != name || space.overrides == nullptr) continue;
      const int rule = space.overrides->rule_of_op[i];
      if (rule >= 0) return &space.overrides->rules[static_cast<std::size_t>(rule)];
    }
    return nullptr;
  }

  Graph graph_ = test_model({});
  std::vector<Segment> segments_ = find_segments(graph_);
};

TEST_F(CompileSpace, RulesReachOperatorsByPathKindLayerParameterAndFactor) {
  const auto reach = [&](const std::string& match) {
    return compile("rules: [{match: " + match + ", recompute: full}]").reach[0].ops;
  };
  EXPECT_EQ(reach("{path: \"layers.*.mlp.*\"}"), 16);
  EXPECT_EQ(reach("{kind: linear, path: \"**.mlp.*\"}"), 12);
  EXPECT_EQ(reach("{kind: linear, path: \"**.mlp.*\", layers: 1-2}"), 6);
  EXPECT_EQ(reach("{parameter: \"**.q_proj.weight\"}"), 4);
  EXPECT_EQ(reach("{factor: ffn}"), 16);
  EXPECT_EQ(reach("{factor: ffn, kind: gated}"), 4);
}

TEST_F(CompileSpace, RequireBecomesOverrides) {
  const CompiledSpace s = compile(
      "rules:\n"
      "  - {name: a, match: {path: \"**.mlp.up\"}, require: {split: {hidden: [tensor], ffn: []}}}\n"
      "  - {name: b, match: {path: \"**.attn.o_proj\", layers: 0}, require: {replicate: true}}\n"
      "  - {name: c, match: {path: \"layers.3.**\"}, recompute: full}\n");
  const OpOverride* up = override_of(s, "layers.2.mlp.up");
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->splits[0], (OpOverride::Split{"ffn", {}}));
  EXPECT_EQ(up->splits[1], (OpOverride::Split{"hidden", {"tensor"}}));
  EXPECT_TRUE(override_of(s, "layers.0.attn.o_proj")->replicate);
  EXPECT_EQ(override_of(s, "layers.1.attn.o_proj"), nullptr);
  EXPECT_EQ(override_of(s, "layers.1.mlp.down"), nullptr);
  // Layers 0, 1-2 and 3 differ now.
  std::vector<Segment> refined = segments_;
  refine_classes(refined, *s.overrides);
  EXPECT_EQ(shape_class_count(refined), shape_class_count(segments_) + 2);
}

TEST_F(CompileSpace, SaysWhatIsWrongWithARule) {
  EXPECT_THAT(message("rules: [{match: \"layers.*.mpl.*\", recompute: full}]"),
              HasSubstr("f.yaml:2:9: rule rule-1: matches no operator of the model (near names: "
                        "layers.0.mlp."));
  EXPECT_THAT(message("rules: [{match: {kind: conv2d}, recompute: full}]"),
              HasSubstr("the model has add, attention, "));
  EXPECT_THAT(message("rules: [{match: {kind: lineer}, recompute: full}]"), HasSubstr("linear"));
  EXPECT_THAT(message("rules: [{match: {kind: linear, path: \"**.mlp.*\"}, "
                      "require: {split: {fnn: [tensor]}}}]"),
              HasSubstr("no matched operator has a factor \"fnn\" (did you mean ffn? their factors "
                        "are batch, ffn, hidden, seq)"));
  EXPECT_THAT(message("rules: [{match: {factor: heads}, allow: {degree: {heads: [4, 16]}}}]"),
              HasSubstr("degree 16 is larger than the factor heads of "));
  EXPECT_THAT(message("rules: [{match: {factor: heads}, require: {degree: {heads: 16}}}]"),
              HasSubstr("which has 8 parts at most (legal degrees are 1, 2, 4, 8)"));
  EXPECT_THAT(message("degrees: {schedule: snake}"), HasSubstr("f.yaml:2:11: unknown schedule"));
}

TEST_F(CompileSpace, OrdersMustNotGoRoundInACircle) {
  EXPECT_THAT(message("order:\n"
                      "  - before: {phase: backward, micro_batch: i}\n"
                      "    after: {phase: forward, micro_batch: i}\n"),
              HasSubstr("f.yaml:3:5: order order-1: the orders go round in a circle: "));
  EXPECT_THAT(message("order:\n"
                      "  - before: {phase: forward, micro_batch: 1, stage: 0}\n"
                      "    after: {phase: forward, micro_batch: 3, stage: 0}\n"
                      "  - before: {phase: forward, micro_batch: 3, stage: 0}\n"
                      "    after: {phase: forward, micro_batch: 1, stage: 0}\n"),
              HasSubstr("forward of micro-batch 3 on stage 0"));
  EXPECT_EQ(message("order:\n"
                    "  - before: {phase: backward, micro_batch: i}\n"
                    "    after: {phase: forward, micro_batch: i+2}\n"),
            "no error");
}

TEST_F(CompileSpace, LaterRulesDoNotOverrideEarlierOnes) {
  const CompiledSpace split = compile(
      "rules:\n"
      "  - {name: a, match: {path: \"**.up\"}, require: {split: {ffn: [tensor]}}}\n"
      "  - {name: b, match: {path: \"layers.1.**\", kind: linear, factor: ffn}, "
      "require: {split: {ffn: [data]}}}\n");
  ASSERT_EQ(split.contradictions.size(), 1u);
  EXPECT_EQ(split.contradictions[0].first, "a");
  EXPECT_EQ(split.contradictions[0].second, "b");
  EXPECT_EQ(split.contradictions[0].message,
            "layers.1.mlp.up is to be split on ffn over [tensor] and over [data]");
  const CompiledSpace axis = compile(
      "rules:\n"
      "  - {name: a, match: {path: \"**.up\"}, require: {split: {ffn: [tensor]}}}\n"
      "  - {name: b, match: {path: \"**.up\"}, require: {split: {hidden: [tensor]}}}\n");
  ASSERT_EQ(axis.contradictions.size(), 1u);
  EXPECT_THAT(axis.contradictions[0].message, HasSubstr("axis tensor is to split both"));
  const CompiledSpace recompute = compile(
      "rules:\n"
      "  - {name: a, match: \"**\", recompute: full}\n"
      "  - {name: b, match: \"layers.2.**\", recompute: none}\n");
  ASSERT_EQ(recompute.contradictions.size(), 1u);
  EXPECT_EQ(recompute.contradictions[0].message, "recompute of layers.2 is to be full and none");
}

TEST_F(CompileSpace, LayoutsAreHeldAgainstTheRules) {
  const ModelFacts facts = model_facts(graph_, segments_);
  const auto broken = [&](const std::string& rules, const Degrees& d) {
    const CompiledSpace s = compile("rules: [{" + rules + "}]");
    return LayoutFilter(s, graph_, facts).broken_rule(d) == 0;
  };
  const Degrees tp{.dp = 2, .tp = 4};
  const Degrees sp{.dp = 2, .tp = 4, .sp = true};
  const Degrees pp{.pp = 2, .dp = 4};
  const std::string norms = "match: {kind: rms_norm}, ";
  EXPECT_TRUE(broken(norms + "require: {factors: seq}", tp));
  EXPECT_FALSE(broken(norms + "require: {factors: seq}", sp));
  EXPECT_TRUE(broken(norms + "forbid: {replicate: true}", tp));
  EXPECT_FALSE(broken(norms + "forbid: {replicate: true}", sp));
  EXPECT_TRUE(broken(norms + "allow: {factors: [batch]}", sp));
  EXPECT_FALSE(broken(norms + "allow: {factors: [batch]}", tp));
  EXPECT_TRUE(broken(norms + "forbid: {axes: [tensor]}", sp));
  EXPECT_FALSE(broken(norms + "forbid: {axes: [tensor]}", tp));
  const std::string up = "match: {path: \"**.up\"}, ";
  EXPECT_TRUE(broken(up + "allow: {max_degree: 2}", tp));
  EXPECT_FALSE(broken(up + "allow: {max_degree: 4}", tp));
  EXPECT_TRUE(broken(up + "require: {degree: {ffn: 8}}", tp));
  EXPECT_FALSE(broken(up + "require: {degree: {ffn: [4, 8]}}", tp));
  EXPECT_FALSE(broken(up + "require: {split: {hidden: [tensor], ffn: []}}", tp));
  // A second data axis is there only when state is sharded over a part of the replicas.
  EXPECT_TRUE(broken(up + "require: {split: {hidden: [dp1]}}", tp));
  EXPECT_TRUE(broken("match: {kind: embedding}, assign: {stage: 2}", pp));
  EXPECT_FALSE(broken("match: {kind: embedding}, assign: {stage: 1}", pp));
  EXPECT_TRUE(broken("match: {kind: embedding}, assign: {devices: 0-2}", pp));
  EXPECT_FALSE(broken("match: {kind: embedding}, assign: {devices: 0-3}", pp));
}

TEST_F(CompileSpace, PrimitivesComposeAPlanByCode) {
  PlanBuilder builder(graph_, segments_);
  op_trans(builder, {.path = {"**.mlp.up"}}, {false, {{"ffn", {"tensor"}}}});
  op_trans(builder, {.path = {"layers.0.**"}}, Recompute::kFull);
  op_assign(builder, {.kind = {"embedding"}}, {.stages = {0}});
  op_order(builder, {{.phase = "forward", .micro_batch = {true, 1}, .stage = {false, 0}},
                     {.phase = "backward", .stage = {false, 0}}});
  const Cluster cluster = read_cluster("dgx-a100:1");
  const Degrees degrees{.pp = 2, .dp = 2, .tp = 2};
  const Plan plan = build(builder, cluster, {}, 16, degrees, {3});
  ASSERT_NE(plan.overrides, nullptr);
  EXPECT_EQ(plan.overrides->rules.size(), 1u);
  EXPECT_EQ(plan.overrides->recompute[1], static_cast<std::int8_t>(Recompute::kFull));
  EXPECT_EQ(plan.overrides->recompute[2], -1);
  EXPECT_EQ(plan.order.size(), 7u);  // Of eight micro-batches, forward i+1 before backward i.

  op_assign(builder, {.path = {"layers.0.**"}}, {.stages = {-1}}, "late");
  try {
    build(builder, cluster, {}, 16, degrees, {3});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "late: layers.0 runs on stage 0, which it must not");
  }
}

}  // namespace
}  // namespace meshwright
