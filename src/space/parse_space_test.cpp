#include <gmock/gmock.h>

#include "base/error.h"
#include "space/plan_space.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::string_view kEverything = R"(
space: everything
paper: "A \"quoted\" title"
summary: one line
degrees: {pp: 1, tp: [4, 2, 8], dp: any, sp: true, zero: [none, zero1], recompute: selective,
          micro_batch: {max: 4}, vpp: {min: 2, max: 3}, schedule: [1f1b, gpipe], hybrid: false}
transforms:
  - {op_trans: co_shard, match: "**.attn.**", factor: heads, parts: 4}
rules:
  - name: mlp-columns
    match: {path: "model.layers.*.mlp.*", kind: linear, layers: [0-15, 20], parameter: "**.weight"}
    require: {split: {ffn: [tensor], hidden: []}, factors: [batch], degree: {ffn: 8}}
    allow: {factors: [ffn, batch], axes: [tensor, data], max_degree: 8, degree: {ffn: [2, 4]},
            replicate: false}
    forbid: {factors: hidden, axes: tp0, replicate: true, stage: last}
    assign: {stage: [0, -2], devices: [0-3, 8]}
    recompute: full
    state: [zero3]
  - match: "**"
    require: {replicate: true}
order:
  - before: {phase: backward, micro_batch: i, stage: last, path: "**.head"}
    after: {phase: forward, micro_batch: i+2, stage: s-1}
)";

TEST(ParseSpace, ReadsEveryKey) {
  const PlanSpace s = parse_space(kEverything, "all.yaml");
  EXPECT_EQ(s.name, "everything");
  ASSERT_EQ(s.degrees.size(), 9u);  // dp: any says nothing.
  EXPECT_EQ(s.degrees[1].key, "tp");
  EXPECT_EQ(s.degrees[1].numbers.values, (std::vector<std::int64_t>{2, 4, 8}));
  EXPECT_EQ(s.degrees[1].place, "all.yaml:5:18");
  ASSERT_EQ(s.rules.size(), 2u);
  const SpaceRule& r = s.rules[0];
  EXPECT_EQ(r.name, "mlp-columns");
  EXPECT_EQ(r.place, "all.yaml:10:5");
  EXPECT_EQ(r.match.layers.size(), 2u);
  ASSERT_EQ(r.split.size(), 2u);
  EXPECT_TRUE(r.split[1].axes.empty());
  EXPECT_EQ(r.allow->replicate, false);
  EXPECT_EQ(r.forbid_placement.stages, std::vector<int>{-1});
  EXPECT_EQ(r.assign.devices[1], (std::pair{8, 8}));
  EXPECT_EQ(r.recompute, Recompute::kFull);
  EXPECT_EQ(s.rules[1].name, "rule-2");
  EXPECT_TRUE(s.rules[1].replicate);
  ASSERT_EQ(s.order.size(), 1u);
  EXPECT_EQ(s.order[0].rule.after.micro_batch, (OrderPoint::Index{true, 2}));
  EXPECT_EQ(s.order[0].rule.before.stage, (OrderPoint::Index{false, -1}));
}

TEST(ParseSpace, PrintsWhatItReads) {
  const std::string once = print_space(parse_space(kEverything, "all.yaml"));
  EXPECT_EQ(print_space(parse_space(once, "printed.yaml")), once);
  EXPECT_THAT(once, HasSubstr("tp: [2, 4, 8]"));
  EXPECT_THAT(once, HasSubstr("micro_batch: i+2, stage: s-1"));
}

TEST(ParseSpace, ShippedSpacesSurvivePrinting) {
  const std::vector<NamedSpace> spaces = named_spaces();
  EXPECT_GE(spaces.size(), 15u);
  for (const NamedSpace& named : spaces) {
    const PlanSpace s = parse_space(named.text, named.name);
    EXPECT_EQ(s.name, named.name);
    EXPECT_NE(s.paper, "") << named.name;
    EXPECT_NE(s.summary, "") << named.name;
    const std::string once = print_space(s);
    EXPECT_EQ(print_space(parse_space(once, named.name)), once);
  }
}

std::string message(const std::string& rest) {
  try {
    parse_space("space: x\n" + rest, "f.yaml");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(ParseSpace, SaysWhereAndWhatWouldWork) {
  EXPECT_EQ(message("rule: []"),
            "f.yaml:2:1: unknown key \"rule\" in a plan space (did you mean rules? legal keys: "
            "space, paper, summary, degrees, transforms, rules, order)");
  EXPECT_THAT(message("degrees: {micro_batches: 2}"),
              StartsWith("f.yaml:2:11: unknown key \"micro_batches\" in degrees "
                         "(did you mean micro_batch?"));
  EXPECT_THAT(message("degrees: {tp: 0}"), HasSubstr("f.yaml:2:15: tp is \"0\", which must be a "
                                                     "whole number from 1 to"));
  EXPECT_THAT(message("degrees: {tp: 1000000000000000}"), HasSubstr("whole number from 1 to"));
  EXPECT_THAT(message("degrees: {tp: {min: 4, max: 2}}"), HasSubstr("min 4 is more than max 2"));
  EXPECT_THAT(message("degrees: {zero: zero4}"), HasSubstr("did you mean zero"));
  EXPECT_THAT(message("degrees: {sp: perhaps}"), HasSubstr("must be true or false"));
  const std::string rule = "rules:\n  - match: {path: \"**\"}\n    ";
  EXPECT_THAT(message("rules: [{match: \"**\"}]"), HasSubstr("says nothing about what it matches"));
  EXPECT_THAT(message("rules: [{require: {replicate: true}}]"), HasSubstr("needs the key match"));
  EXPECT_THAT(message(rule + "requires: {}"), HasSubstr("did you mean require?"));
  EXPECT_THAT(message(rule + "require: {split: {ffn: [tensr]}}"),
              HasSubstr("f.yaml:4:29: unknown axis \"tensr\" (did you mean tensor?"));
  EXPECT_THAT(message(rule + "require: {split: {a: [tensor], b: [tensor]}}"),
              HasSubstr("axis tensor splits two factors at once"));
  EXPECT_THAT(message(rule + "require: {replicate: false}"),
              HasSubstr("forbid: {replicate: true}"));
  EXPECT_THAT(message(rule + "allow: {}"), HasSubstr("allow says nothing"));
  EXPECT_THAT(message(rule + "assign: {stage: middle}"), HasSubstr("stage is \"middle\""));
  EXPECT_THAT(message(rule + "assign: {devices: 3-1}"), HasSubstr("ends before it begins"));
  EXPECT_THAT(message(rule + "recompute: some"), HasSubstr("unknown recompute mode \"some\""));
  EXPECT_THAT(message("rules: [{match: {path: \"a..b\"}, recompute: full}]"),
              HasSubstr("empty component"));
  EXPECT_THAT(message("rules: [{match: {layers: x}, recompute: full}]"),
              HasSubstr("write 3 or 0-15"));
  EXPECT_THAT(message("transforms: [{op_trans: co_shrad, match: \"**\", parts: 2}]"),
              HasSubstr("did you mean co_shard?"));
  EXPECT_THAT(message("transforms: [{op_trans: co_shard, match: \"**\", parts: 1}]"),
              HasSubstr("parts is \"1\""));
  EXPECT_THAT(message("order: [{before: {phase: forward}, after: {phase: forward}}]"),
              HasSubstr("before and after are the same"));
  EXPECT_THAT(
      message("order: [{before: {phase: forward, micro_batch: j}, after: {phase: weight}}]"),
      HasSubstr("write a number, i (any), i+1 or i-1"));
  EXPECT_THAT(message("rules:\n  - {name: a, match: \"**\", recompute: full}\n"
                      "  - {name: a, match: \"**\", recompute: full}"),
              HasSubstr("f.yaml:4:5: two rules are named a"));
  EXPECT_THAT(message("space: y"), HasSubstr("key \"space\" appears twice"));
  EXPECT_THAT(message("rules: {a: b}"), HasSubstr("rules must be a list"));
}

TEST(ReadSpace, UnknownNamesAreAnsweredWithNearOnes) {
  try {
    read_space("fspd");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("no plan space is named \"fspd\" (did you mean fsdp"));
  }
}

}  // namespace
}  // namespace meshwright
