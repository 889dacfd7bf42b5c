#include <fmt/format.h>
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <cstdlib>

#include "base/error.h"
#include "models/test_models.h"
#include "ops/builder.h"
#include "plan/transforms/transform_properties.h"

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Graph co_shard(const Graph& graph, std::string match, std::string factor, int parts) {
  return apply_transform(graph, {"co_shard", std::move(match), std::move(factor), parts});
}

std::string error_of(const Graph& graph, std::string match, std::string factor, int parts) {
  try {
    co_shard(graph, std::move(match), std::move(factor), parts);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::vector<std::string> names_in(const Graph& graph, std::string_view layer) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops) {
    if (op.name.starts_with(layer)) names.push_back(op.name.substr(layer.size()));
  }
  return names;
}

TEST(CoShard, SplitsAnMlpPartByPart) {
  const Graph before = test_model({.layers = 2});
  const Graph after = co_shard(before, "layers.*.mlp.**", "ffn", 2);
  expect_equal_work(before, after);
  EXPECT_THAT(names_in(after, "layers.1.mlp."),
              ElementsAre("gate@co0", "up@co0", "act@co0", "down@co0", "gate@co1", "up@co1",
                          "act@co1", "down@co1", "down"));
  EXPECT_EQ(type_of(after, "layers.1.mlp.gate.weight@co1"), "bf16[ffn=128, hidden=64]");
  EXPECT_EQ(type_of(after, "layers.1.mlp.down.weight@co0"), "bf16[hidden=64, ffn=128]");
  EXPECT_EQ(find_value(after, "layers.1.mlp.gate.weight"), nullptr);
  EXPECT_EQ(find_op_named(after, "layers.1.mlp.down")->kind, "add");
  EXPECT_EQ(type_of(after, "layers.1.mlp.down"), type_of(before, "layers.1.mlp.down"));
  EXPECT_EQ(count_kind(after, "concat") + count_kind(after, "slice"), 0);
  EXPECT_EQ(shape_class_count(find_segments(after)), shape_class_count(find_segments(before)));
}

TEST(CoShard, SplitsHeadsWithTheirKeysAndValues) {
  const Graph before = test_model({.heads = 8, .kv_heads = 4});
  const Graph after = co_shard(before, "layers.*.attn.**", "heads", 4);
  expect_equal_work(before, after);
  EXPECT_EQ(type_of(after, "layers.0.attn.core@co3"),
            "bf16[batch=16, seq=128, heads=2, head_dim=8]");
  EXPECT_EQ(type_of(after, "layers.0.attn.k_proj.weight@co2"), "bf16[kv_heads=8/8, hidden=64]");
  EXPECT_EQ(type_of(after, "layers.0.attn.o_proj.weight@co2"), "bf16[hidden=64, heads=16/8]");
  EXPECT_EQ(count_kind(after, "concat") + count_kind(after, "slice"), 0);
  // Three sums per layer, and the two of the residual stream.
  EXPECT_EQ(count_kind(after, "add"), 4 * (3 + 2));
}

TEST(CoShard, SplitsQueriesThatShareOneKey) {
  const Graph before = test_model({.heads = 8, .kv_heads = 1, .layers = 1});
  const Graph after = co_shard(before, "layers.*.attn.**", "heads", 4);
  expect_equal_work(before, after);
  const Op* core = find_op_named(after, "layers.0.attn.core@co3");
  ASSERT_NE(core, nullptr);
  EXPECT_EQ(after.value(core->inputs[0]).type.dims[2].size, 2);
  EXPECT_EQ(after.value(core->inputs[1]).name, "layers.0.attn.k_rope");
  EXPECT_EQ(count_kind(after, "concat"), 0);
}

TEST(CoShard, SlicesAndJoinsAtTheEdge) {
  const Graph before = test_model({.layers = 1});
  const Graph after = co_shard(before, "layers.*.attn.**", "batch", 4);
  expect_equal_work(before, after);
  EXPECT_EQ(type_of(after, "layers.0.attn.q_proj@co2.slice0"), "bf16[batch=4, seq=128, hidden=64]");
  EXPECT_EQ(attr_int(find_op_named(after, "layers.0.attn.q_proj@co2.slice0")->attrs, "start", 0),
            8);
  // One slice per part serves q, k and v; parameters are shared.
  EXPECT_EQ(count_kind(after, "slice"), 4);
  EXPECT_EQ(count_kind(after, "concat"), 1);
  EXPECT_EQ(find_op_named(after, "layers.0.attn.o_proj")->kind, "concat");
  EXPECT_NE(find_value(after, "layers.0.attn.q_proj.weight"), nullptr);
}

TEST(CoShard, JoinsAnOutputThatOnlyOthersRead) {
  const Graph before = test_model({.layers = 1});
  const Graph after = co_shard(before, "layers.0.mlp.up", "ffn", 2);
  expect_equal_work(before, after);
  EXPECT_THAT(names_in(after, "layers.0.mlp."),
              ElementsAre("gate", "up@co0", "up@co1", "up", "act", "down"));
  EXPECT_EQ(type_of(after, "layers.0.mlp.up"), type_of(before, "layers.0.mlp.up"));
}

TEST(CoShard, KeepsLayersTogetherWhenEverythingIsSplit) {
  const Graph before = test_model({.layers = 3});
  const Graph after = co_shard(before, "**", "batch", 2);
  expect_equal_work(before, after);
  EXPECT_EQ(co_shard(before, "", "batch", 2), after);
  EXPECT_EQ(find_segments(after).size(), find_segments(before).size());
}

TEST(CoShard, AddsABiasOnce) {
  GraphBuilder b("bias");
  const ValueId x = b.input("x", {DType::kBf16, {{"batch", 4}, {"hidden", 8}}});
  const ValueId up = b.op("relu", "act", {b.linear("up", x, {"ffn", 32, 1}, true)});
  b.linear("down", up, {"hidden", 8, 1}, true);
  const Graph before = b.finish();
  const Graph after = co_shard(before, "", "ffn", 4);
  expect_equal_work(before, after);
  EXPECT_EQ(find_op_named(after, "down@co0")->inputs.size(), 3u);
  EXPECT_EQ(find_op_named(after, "down@co1")->inputs.size(), 2u);
  EXPECT_EQ(find_op_named(after, "up@co3")->inputs.size(), 3u);
  EXPECT_EQ(type_of(after, "up.bias@co3"), "bf16[ffn=8]");
  EXPECT_EQ(type_of(after, "down.bias"), "bf16[hidden=8]");
  std::vector<std::string> names;
  for (const Op& op : after.ops) names.push_back(op.name);
  EXPECT_THAT(names, ElementsAre("up@co0", "act@co0", "down@co0", "up@co1", "act@co1", "down@co1",
                                 "down@co1.sum", "up@co2", "act@co2", "down@co2", "down@co2.sum",
                                 "up@co3", "act@co3", "down@co3", "down"));
}

TEST(CoShard, SplitsExperts) {
  const Graph before = test_model({.layers = 2, .experts = 8});
  for (const char* factor : {"experts", "expert_ffn"}) {
    const Graph after = co_shard(before, "layers.*.mlp.**", factor, 4);
    expect_equal_work(before, after);
    const bool experts = std::string_view(factor) == "experts";
    EXPECT_EQ(type_of(after, "layers.1.mlp.up.weight@co3"),
              experts ? "bf16[experts=2, expert_ffn=256, hidden=64]"
                      : "bf16[experts=8, expert_ffn=64, hidden=64]");
  }
}

TEST(CoShard, SplitsATiedTableWithAllItsReaders) {
  const Graph before = test_model({.layers = 1, .tied = true});
  EXPECT_THAT(error_of(before, "head", "vocab", 2),
              HasSubstr("parameter 'embed.weight' is split, but embed reads it whole"));
  const Graph untied = test_model({.layers = 1});
  const Graph after = co_shard(untied, "head", "vocab", 2);
  expect_equal_work(untied, after);
  EXPECT_EQ(find_op_named(after, "head")->kind, "concat");
}

TEST(CoShard, PartsOfASequenceKnowTheirPositions) {
  const Graph before = test_model({.layers = 1});
  const Graph after = co_shard(before, "layers.*.attn.*", "seq", 4);
  expect_equal_work(before, after);
  for (int part = 0; part < 4; ++part) {
    const Op* rope = find_op_named(after, fmt::format("layers.0.attn.q_rope@co{}", part));
    ASSERT_NE(rope, nullptr);
    EXPECT_EQ(attr_int(rope->attrs, "offset", -1), 32 * part);
  }
  EXPECT_NE(find_op_named(after, "layers.0.attn.core"), nullptr);
}

TEST(CoShard, TwiceInOneGraph) {
  const Graph before = test_model({.layers = 2});
  Graph after = co_shard(before, "layers.*.attn.**", "heads", 2);
  after = co_shard(after, "layers.*.mlp.**", "ffn", 4);
  expect_equal_work(before, after);
  after = co_shard(after, "layers.*.mlp.**", "ffn", 2);
  expect_equal_work(before, after);
  EXPECT_NE(find_op_named(after, "layers.1.mlp.down@co3@co1"), nullptr);
}

TEST(CoShard, OnePartIsTheGraphItself) {
  const Graph graph = test_model({});
  EXPECT_EQ(co_shard(graph, "layers.*.mlp.**", "ffn", 1), graph);
}

TEST(CoShard, Errors) {
  const Graph graph = test_model({.layers = 1});
  EXPECT_THAT(error_of(graph, "layers.*.mlp.**", "hedas", 2),
              HasSubstr("no selected operator has a factor \"hedas\" (factors that can be split "
                        "there: batch, ffn, hidden, seq)"));
  EXPECT_THAT(error_of(graph, "layers.*.attn.core", "seq", 2),
              HasSubstr("no selected operator can be split along factor \"seq\""));
  EXPECT_THAT(error_of(graph, "layers.*.mlp.**", "ffn", 3),
              HasSubstr("3 parts do not divide factor 'ffn' of 256 (a divisor of 256)"));
  EXPECT_THAT(error_of(graph, "layers.*.attn.**", "heads", 8),
              HasSubstr("8 parts do not divide factor 'kv_heads' of 4 (a divisor of 4)"));
  EXPECT_THAT(error_of(graph, "layers.*.attn.*_proj", "heads", 3),
              HasSubstr("3 parts do not divide factor 'heads' of 8 units of 8"));
  EXPECT_THAT(error_of(graph, "layers.*.moe.**", "ffn", 2),
              HasSubstr("no operator matches \"layers.*.moe.**\""));
  EXPECT_THAT(error_of(graph, "layers..mlp", "ffn", 2), HasSubstr("empty component"));
  EXPECT_THAT(error_of(graph, "", "", 2), HasSubstr("co_shard needs a factor"));
  EXPECT_THAT(error_of(graph, "", "ffn", 0), HasSubstr("co_shard takes 1 to 64 parts, not 0"));
  EXPECT_THAT(error_of(graph, "", "ffn", 65), HasSubstr("co_shard takes 1 to 64 parts, not 65"));
  EXPECT_THAT(error_of(graph, "embed", "vocab", 2),
              HasSubstr("no selected operator can be split along factor \"vocab\""));
  try {
    find_transform("coshard");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                HasSubstr("unknown transform \"coshard\" (known: co_shard, slice_sequence)"));
  }
}

// a -> b -> c and a -> c, b left out: the parts of a and c would need all of b in between.
TEST(CoShard, WhatStandsBetweenMustBeSelected) {
  GraphBuilder g("between");
  const ValueId x = g.input("x", {DType::kBf16, {{"batch", 4}, {"hidden", 8}}});
  const ValueId a = g.op("relu", "a.x", {x});
  const ValueId b = g.op("relu", "b.x", {a});
  g.op("add", "c.x", {a, b});
  const Graph graph = g.finish();
  EXPECT_THAT(error_of(graph, "[0]", "batch", 2), HasSubstr("no operator matches"));
  Graph renamed = graph;
  renamed.ops[0].name = "in.a";
  renamed.ops[2].name = "in.c";
  EXPECT_THAT(error_of(renamed, "in.*", "batch", 2),
              HasSubstr("b.x: the operator stands between selected operators"));
  expect_equal_work(graph, co_shard(graph, "", "batch", 2));
}

TEST(CoShard, TwoWaysToSplitOneOperator) {
  GraphBuilder g("square");
  const ValueId x = g.input("x", {DType::kBf16, {{"rows", 8}, {"hidden", 8}}});
  g.linear("y", x, {"hidden", 8, 1}, false);
  EXPECT_THAT(error_of(g.finish(), "", "hidden", 2),
              HasSubstr("y: two factors are named 'hidden' in x0 k+, n k+ -> x0 n"));
}

TEST(CoShard, RandomModelsSelectionsAndParts) {
  ::setenv("RC_PARAMS", "seed=7 max_success=150", 0);
  EXPECT_TRUE(rc::check([] {
    TestModelSizes z;
    z.batch = *rc::gen::element<std::int64_t>(4, 8, 12);
    z.heads = *rc::gen::element<std::int64_t>(4, 8, 16);
    z.kv_heads = z.heads / *rc::gen::element<std::int64_t>(1, 2, 4);
    z.ffn = *rc::gen::element<std::int64_t>(48, 96, 256);
    z.layers = *rc::gen::inRange<std::int64_t>(1, 4);
    z.experts = *rc::gen::element<std::int64_t>(0, 4, 8);
    z.tied = *rc::gen::arbitrary<bool>();
    const Graph before = test_model(z);
    const std::string match = *rc::gen::element<std::string>(
        "", "**", "layers.*.**", "layers.*.attn.**", "layers.*.mlp.**", "layers.[0-1].mlp.*",
        "layers.0.*.*", "**.*_proj", "head", "*");
    const std::string factor = *rc::gen::element<std::string>(
        "batch", "seq", "heads", "kv_heads", "ffn", "hidden", "vocab", "experts", "expert_ffn");
    const int parts = *rc::gen::element(1, 2, 3, 4, 8);
    Graph after;
    try {
      after = co_shard(before, match, factor, parts);
    } catch (const Error&) {
      RC_DISCARD();
    }
    expect_equal_work(before, after);
    RC_ASSERT(!testing::Test::HasFailure());
    RC_TAG(fmt::format("{} {}", match, factor));
  }));
}

}  // namespace
}  // namespace meshwright
