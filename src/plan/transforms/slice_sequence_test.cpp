#include <fmt/format.h>
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "models/test_models.h"
#include "ops/builder.h"
#include "plan/transforms/transform_properties.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

Graph slice_sequence(const Graph& graph, int parts) {
  return apply_transform(graph, {"slice_sequence", "", "", parts});
}

std::string error_of(const Graph& graph, const TransformRequest& request) {
  try {
    apply_transform(graph, request);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
std::string error_of(const Graph& graph, int parts) {
  return error_of(graph, {"slice_sequence", "", "", parts});
}

TEST(SliceSequence, SlicesFollowEachOther) {
  const Graph before = test_model({.layers = 2});
  const Graph after = slice_sequence(before, 4);
  expect_equal_work(before, after);
  int last = 0;
  for (const Op& op : after.ops) {
    ASSERT_TRUE(op.name.starts_with("slice")) << op.name;
    const int slice = op.name[5] - '0';
    EXPECT_GE(slice, last) << op.name;
    last = slice;
  }
  EXPECT_EQ(last, 3);
  // Every layer of every slice is a segment; slices of equal depth differ by their keys only.
  std::map<int, int> layers;
  for (const Segment& s : find_segments(after)) layers[s.shape_class] += s.is_layer;
  std::vector<int> counts;
  for (const auto& [shape, count] : layers) {
    if (count > 0) counts.push_back(count);
  }
  EXPECT_EQ(counts, (std::vector<int>{2, 2, 2, 2}));
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(type_of(after, fmt::format("slice{}.loss", t)), "f32[batch=16, seq=32]");
  }
}

TEST(SliceSequence, AttentionReadsTheSlicesBefore) {
  const Graph after = slice_sequence(test_model({.layers = 1}), 4);
  for (int t = 0; t < 4; ++t) {
    const Op* core = find_op_named(after, fmt::format("slice{}.layers.0.attn.core", t));
    ASSERT_NE(core, nullptr);
    EXPECT_EQ(attr_int(core->attrs, "query_offset", -1), 32 * t);
    EXPECT_EQ(after.value(core->inputs[0]).type.dims[1].size, 32);
    EXPECT_EQ(after.value(core->inputs[1]).type.dims[1].size, 32 * (t + 1));
    EXPECT_EQ(after.value(core->inputs[2]).type.dims[1].size, 32 * (t + 1));
    const Op* rope = find_op_named(after, fmt::format("slice{}.layers.0.attn.k_rope", t));
    EXPECT_EQ(attr_int(rope->attrs, "offset", 0), 32 * t);
  }
  const Op* keys = find_op_named(after, "slice2.layers.0.attn.core.keys");
  ASSERT_NE(keys, nullptr);
  EXPECT_EQ(after.value(keys->inputs[0]).name, "slice0.layers.0.attn.k_rope");
  EXPECT_EQ(after.value(keys->inputs[2]).name, "slice2.layers.0.attn.k_rope");
}

TEST(SliceSequence, WindowsReadOnlyWhatTheySee) {
  Graph before = test_model({.layers = 1});
  for (Op& op : before.ops) {
    if (op.kind == "attention") op.attrs["window"] = std::int64_t{40};
  }
  const Graph after = slice_sequence(before, 8);
  expect_equal_work(before, after);
  // Slice 5 begins at 80; the window of its first query begins at 40, in slice 2.
  const Op* core = find_op_named(after, "slice5.layers.0.attn.core");
  EXPECT_EQ(after.value(core->inputs[1]).type.dims[1].size, 4 * 16);
  EXPECT_EQ(attr_int(core->attrs, "query_offset", -1), 3 * 16);
}

// A bias over all pairs of positions, computed once, of which each slice takes its rows and keys.
TEST(SliceSequence, CutsABias) {
  GraphBuilder b("bias");
  const ValueId q =
      b.input("q", {DType::kBf16, {{"batch", 2}, {"seq", 16}, {"heads", 4}, {"head_dim", 8}}});
  const ValueId table = b.parameter("table", {{"buckets", 8, 1}, {"heads", 4, 1}});
  const ValueId bias = b.op("relative_bias", "bias", {table},
                            {{"query_length", std::int64_t{16}}, {"key_length", std::int64_t{16}}});
  b.op("attention", "layers.0.core", {q, q, q, bias}, {{"causal", true}});
  const Graph before = b.finish();
  const Graph after = slice_sequence(before, 4);
  expect_equal_work(before, after);
  EXPECT_EQ(after.ops[0].name, "bias");
  const Op* core = find_op_named(after, "slice1.layers.0.core");
  EXPECT_EQ(to_string(after.value(core->inputs[3]).type), "bf16[heads=4, seq=4, keys=8]");
  EXPECT_EQ(to_string(after.value(core->inputs[1]).type),
            "bf16[batch=2, seq=8, heads=4, head_dim=8]");
}

TEST(SliceSequence, OnePartIsTheGraphItself) {
  const Graph graph = test_model({});
  EXPECT_EQ(slice_sequence(graph, 1), graph);
}

TEST(SliceSequence, ThenCoShard) {
  const Graph before = test_model({.layers = 2});
  const Graph slices = slice_sequence(before, 2);
  const Graph after = apply_transform(slices, {"co_shard", "slice*.layers.*.mlp.**", "ffn", 2});
  expect_equal_work(before, after);
  // Both slices read the same part of the parameter.
  const Op* first = find_op_named(after, "slice0.layers.1.mlp.up@co1");
  const Op* second = find_op_named(after, "slice1.layers.1.mlp.up@co1");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(first->inputs[1], second->inputs[1]);
}

TEST(SliceSequence, Errors) {
  const Graph graph = test_model({.layers = 1});
  EXPECT_THAT(error_of(graph, 3), HasSubstr("3 slices do not divide 'seq' of 128 (ids)"));
  EXPECT_THAT(error_of(graph, 0), HasSubstr("slice_sequence takes 1 to 64 parts, not 0"));
  EXPECT_THAT(error_of(graph, {"slice_sequence", "layers.0.**", "", 2}),
              HasSubstr("rewrites every operator along the sequence, not a selection"));
  EXPECT_THAT(error_of(graph, {"slice_sequence", "", "patches", 2}),
              HasSubstr("no input has a dimension 'patches'"));
  EXPECT_THAT(error_of(slice_sequence(graph, 2), 2), HasSubstr("slice"));

  Graph encoder = graph;
  for (Op& op : encoder.ops) op.attrs.erase("causal");
  EXPECT_THAT(error_of(encoder, 2),
              HasSubstr("layers.0.attn.core: the attention is not causal: a query of the first "
                        "slice would need the keys of slices that have not run yet ('seq')"));

  GraphBuilder b("pool");
  const ValueId x = b.input("x", {DType::kBf16, {{"batch", 2}, {"seq", 16}, {"hidden", 8}}});
  b.op("mean_pool", "pool", {x}, {{"dim", std::int64_t{1}}});
  EXPECT_THAT(error_of(b.finish(), 2), HasSubstr("pool: mean_pool mixes positions of 'seq'"));
}

TEST(SliceSequence, RandomModels) {
  ::setenv("RC_PARAMS", "seed=7 max_success=60", 0);
  EXPECT_TRUE(rc::check([] {
    TestModelSizes z;
    const int parts = *rc::gen::element(1, 2, 3, 4, 8, 64);
    // Tokens of a slice divide evenly among the experts.
    z.seq = parts * *rc::gen::element<std::int64_t>(8, 16, 40);
    z.batch = *rc::gen::inRange<std::int64_t>(1, 5);
    z.heads = *rc::gen::element<std::int64_t>(4, 8);
    z.layers = *rc::gen::inRange<std::int64_t>(1, 3);
    z.experts = *rc::gen::element<std::int64_t>(0, 4, 8);
    z.tied = *rc::gen::arbitrary<bool>();
    const Graph before = test_model(z);
    expect_equal_work(before, slice_sequence(before, parts));
    RC_ASSERT(!testing::Test::HasFailure());
  }));
}

}  // namespace
}  // namespace meshwright
