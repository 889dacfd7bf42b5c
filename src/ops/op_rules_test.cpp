// What single operators promise beyond the properties of all of them.

#include <gmock/gmock.h>

#include "base/error.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using Ints = std::vector<std::int64_t>;

std::string text(const char* t) { return t; }
Attr number(std::int64_t n) { return n; }

// The result type as text, or the error.
std::string result(std::string_view kind, const std::vector<TensorType>& inputs,
                   const Attrs& attrs = {}) {
  try {
    return to_string(infer(find_op(kind), {attrs, inputs, {}})[0]);
  } catch (const Error& e) {
    return e.what();
  }
}

TensorType bf16(std::vector<Dim> dims) { return {DType::kBf16, std::move(dims)}; }

const TensorType& heads4() {
  static const TensorType type = bf16({{"batch", 2}, {"seq", 6}, {"heads", 4}, {"head_dim", 8}});
  return type;
}

TEST(Reshape, SplitsAndMergesHeads) {
  EXPECT_EQ(result("reshape", {bf16({{"batch", 2}, {"seq", 6}, {"heads", 32, 8}})},
                   {{"pattern", text("b s (h d) -> b s h d")},
                    {"sizes", text("d=8")},
                    {"names", text("d=head_dim")}}),
            to_string(heads4()));
  EXPECT_EQ(result("reshape", {heads4()}, {{"pattern", text("* h d -> * (h d)")}}),
            "bf16[batch=2, seq=6, heads=32/8]");
}

TEST(Reshape, ErrorsSayWhatWouldWork) {
  const auto error = [](const char* pattern, const char* sizes = "", const char* names = "") {
    return result("reshape", {heads4()},
                  {{"pattern", text(pattern)}, {"sizes", text(sizes)}, {"names", text(names)}});
  };
  EXPECT_THAT(error("b s h d -> b h s d"), HasSubstr("reorders or drops dimensions"));
  EXPECT_THAT(error("b s h d -> b s h"), HasSubstr("reorders or drops dimensions"));
  EXPECT_THAT(error("b s (h r) d -> b s h r d"), HasSubstr("more than one size"));
  EXPECT_THAT(error("b s (h r) d -> b s h r d", "h=2"), HasSubstr("'h' may be split"));
  EXPECT_THAT(error("b s (h r) d -> b s h r d", "r=3"), HasSubstr("does not factor"));
  EXPECT_THAT(error("b s (h r) d -> b s h r d", "r=x"), HasSubstr("'x' is no size"));
  EXPECT_THAT(error("b s (h r) d -> b s h r d", "r"), HasSubstr("must read 'id=size': 'r'"));
  EXPECT_THAT(error("b s h d -> b s h d", "", "z=seq"), HasSubstr("'z' is not in the pattern"));
  EXPECT_THAT(error("b s h+ d -> b s d"), HasSubstr("unexpected character '+'"));
  EXPECT_THAT(error("b s h 8 -> b s h 8"), HasSubstr("size 8 must be an id"));
  EXPECT_THAT(error("b s h -> b s h"), HasSubstr("rank 3"));
  EXPECT_THAT(result("reshape", {heads4()}), HasSubstr("attribute 'pattern' is missing"));
}

TEST(Attention, LabelsItsFactors) {
  const TensorType k = bf16({{"batch", 2}, {"src_seq", 5}, {"kv_heads", 2}, {"head_dim", 8}});
  const std::vector<TensorType> inputs = {heads4(), k, k};
  const Attrs attrs;
  const Rule rule = rule_of(find_op("attention"), {attrs, inputs, {}});
  std::vector<std::string> labels;
  for (const Factor& f : rule.factors) labels.push_back(f.label);
  EXPECT_THAT(labels, testing::ElementsAre("batch", "seq", "kv_heads", "queries_per_kv_head",
                                           "head_dim", "keys", "head_dim"));
  EXPECT_EQ(result("attention", inputs), "bf16[batch=2, seq=6, heads=4, head_dim=8]");
}

TEST(Attention, OperandsMustFit) {
  const TensorType k3 = bf16({{"batch", 2}, {"seq", 6}, {"kv_heads", 3}, {"head_dim", 8}});
  EXPECT_THAT(result("attention", {heads4(), k3, k3}), HasSubstr("does not factor"));
  const TensorType bias = bf16({{"heads", 4}, {"seq", 6}, {"keys", 6}});
  const TensorType sinks = bf16({{"heads", 4}});
  const std::vector<TensorType> qkv = {heads4(), heads4(), heads4()};
  const auto with = [&](std::vector<TensorType> more, Attrs attrs = {}) {
    more.insert(more.begin(), qkv.begin(), qkv.end());
    return result("attention", more, attrs);
  };
  EXPECT_EQ(with({bias, sinks}), to_string(heads4()));
  EXPECT_EQ(with({sinks}, {{"sinks", true}}), to_string(heads4()));
  EXPECT_THAT(with({sinks, bias}), HasSubstr("a bias [heads, s, t] and then sinks"));
  EXPECT_THAT(with({}, {{"sinks", true}}), HasSubstr("the last operand is no vector"));
  EXPECT_THAT(with({}, {{"kernel", text("fused")}}), HasSubstr("legal: flash unfused"));
}

// Shares of the s x s scores: half when causal, w s - w^2 / 2 of s^2 in a causal window.
TEST(Attention, WindowsSkipMaskedScores) {
  const TensorType q = bf16({{"batch", 1}, {"seq", 1024}, {"heads", 2}, {"head_dim", 64}});
  const std::vector<TensorType> inputs = {q, q, q};
  const std::vector<TensorType> outputs = {q};
  const auto share = [&](const Attrs& attrs) {
    const Work work = work_of(find_op("attention"), {attrs, inputs, outputs});
    return work.forward_flops.value / (2.0 * 2 * 1024 * 1024 * 128);
  };
  EXPECT_DOUBLE_EQ(share({}), 1);
  EXPECT_DOUBLE_EQ(share({{"causal", true}}), 0.5);
  EXPECT_DOUBLE_EQ(share({{"causal", true}, {"window", number(4096)}}), 0.5);
  EXPECT_DOUBLE_EQ(share({{"causal", true}, {"window", number(256)}}), 0.25 - 0.03125);
  EXPECT_DOUBLE_EQ(share({{"window", number(256)}}), 0.25);
  EXPECT_DOUBLE_EQ(share({{"causal", true}, {"kernel", text("unfused")}}), 1);
}

// Slices of a sequence, each after the keys in front of it, do the work of the whole.
TEST(Attention, SlicesOfQueriesAddUp) {
  const auto flops = [](std::int64_t queries, std::int64_t keys, const Attrs& attrs) {
    const TensorType q = bf16({{"batch", 1}, {"seq", queries}, {"heads", 2}, {"head_dim", 64}});
    const TensorType k = bf16({{"batch", 1}, {"seq", keys}, {"heads", 2}, {"head_dim", 64}});
    const std::vector<TensorType> inputs = {q, k, k};
    const std::vector<TensorType> outputs = {q};
    return work_of(find_op("attention"), {attrs, inputs, outputs}).forward_flops.value;
  };
  for (const std::int64_t window : {0, 100, 256, 700}) {
    const double whole = flops(1024, 1024, {{"causal", true}, {"window", number(window)}});
    double sum = 0;
    for (std::int64_t start = 0; start < 1024; start += 256) {
      sum += flops(256, start + 256,
                   {{"causal", true}, {"window", number(window)}, {"query_offset", number(start)}});
    }
    EXPECT_NEAR(sum, whole, 1e-9 * whole) << window;
  }
  const auto q = heads4();
  EXPECT_THAT(result("attention", {q, q, q}, {{"causal", true}, {"query_offset", number(1)}}),
              HasSubstr("6 queries after an offset of 1 need as many keys, but there are 6"));
  EXPECT_THAT(result("attention", {q, q, q}, {{"query_offset", number(0)}}),
              HasSubstr("'query_offset' is for causal attention only"));
}

// Rows attend by themselves; a bias serves all rows of a sample, or each has its own.
TEST(Attention, TakesRows) {
  const TensorType x =
      bf16({{"batch", 2}, {"sequences", 3}, {"residues", 6}, {"heads", 4}, {"head_dim", 8}});
  const TensorType shared = bf16({{"batch", 2}, {"heads", 4}, {"residues", 6}, {"keys", 6}});
  const TensorType own =
      bf16({{"batch", 2}, {"sequences", 3}, {"heads", 4}, {"residues", 6}, {"keys", 6}});
  for (const TensorType& bias : {shared, own}) {
    EXPECT_EQ(result("attention", {x, x, x, bias}), to_string(x));
  }
  const Attrs attrs;
  const std::vector<TensorType> inputs = {x, x, x, shared};
  EXPECT_EQ(to_string(rule_of(find_op("attention"), {attrs, inputs, {}})),
            "b n s^ (g r) d^, b n t^ g d^, b n t^ g e^, b (g r) s^ t^ -> b n s^ (g r) e^");
  const std::vector<TensorType> outputs = {x};
  const Work rows = work_of(find_op("attention"), {attrs, inputs, outputs});
  EXPECT_DOUBLE_EQ(rows.forward_flops.value, 2.0 * 2 * 3 * 4 * 6 * 6 * 16);
  EXPECT_THAT(result("attention", {x, x, heads4()}), HasSubstr("operand 2 must have rank 5"));
}

TEST(Conv2d, PatchesSplitExactlyAndWindowsOverlap) {
  const TensorType image = bf16({{"batch", 2}, {"channels", 3}, {"height", 224}, {"width", 224}});
  const TensorType patch = bf16({{"hidden", 8}, {"channels", 3}, {"ky", 16}, {"kx", 16}});
  const TensorType small = bf16({{"hidden", 8}, {"channels", 3}, {"ky", 3}, {"kx", 3}});
  const auto rule = [](const std::vector<TensorType>& inputs, const Attrs& attrs) {
    return to_string(rule_of(find_op("conv2d"), {attrs, inputs, {}}));
  };
  EXPECT_EQ(rule({image, patch}, {{"stride", number(16)}}),
            "b i+ (y p^) (x q^), o i+ p^ q^ -> b o y x");
  EXPECT_EQ(rule({image, small}, {}), "b i+ y~ x~, o i+ p^ q^ -> b o y~' x~'");
  EXPECT_EQ(result("conv2d", {image, patch}, {{"stride", number(16)}}),
            "bf16[batch=2, hidden=8, height=14, width=14]");
  EXPECT_EQ(result("conv2d", {image, small}, {{"stride", Ints{2, 1}}, {"padding", number(1)}}),
            "bf16[batch=2, hidden=8, height=112, width=224]");
  // Half of the rows and the overlap give half of the result.
  const TensorType half = bf16({{"batch", 2}, {"channels", 3}, {"height", 113}, {"width", 224}});
  EXPECT_EQ(result("conv2d", {half, small}), "bf16[batch=2, hidden=8, height=111, width=222]");
  EXPECT_EQ(result("conv2d", {image, small}), "bf16[batch=2, hidden=8, height=222, width=222]");
  EXPECT_THAT(result("conv2d", {image, patch}, {{"kernel", number(3)}}),
              HasSubstr("attribute 'kernel' is 3, the weight's window 16"));
  EXPECT_THAT(result("conv2d", {image, patch}, {{"stride", Ints{1, 2, 3}}}),
              HasSubstr("must have 2 elements"));
  EXPECT_THAT(result("conv2d", {small, image}), HasSubstr("window of 224 is larger than"));
  const TensorType grey = bf16({{"hidden", 8}, {"channels", 1}, {"ky", 3}, {"kx", 3}});
  EXPECT_THAT(result("conv2d", {image, grey}), HasSubstr("dimension 'channels' has size 3 in one"));
}

TEST(Concat, KeepsAUnitThatAllShare) {
  const TensorType flat = bf16({{"batch", 2}, {"heads", 16, 8}});
  EXPECT_EQ(result("concat", {flat, flat}, {{"dim", number(1)}}), "bf16[batch=2, heads=32/8]");
  const TensorType other = bf16({{"batch", 2}, {"heads", 16, 4}});
  EXPECT_EQ(result("concat", {flat, other}, {{"dim", number(1)}}), "bf16[batch=2, heads=32]");
}

TEST(Concat, RepeatsSmallOperands) {
  const TensorType x = bf16({{"batch", 4}, {"patches", 196}, {"hidden", 8}});
  const TensorType token = bf16({{"patches", 1}, {"hidden", 8}});
  EXPECT_EQ(result("concat", {token, x}, {{"dim", number(1)}}),
            "bf16[batch=4, patches=197, hidden=8]");
  const TensorType rope = bf16({{"batch", 2}, {"seq", 6}, {"one", 1}, {"head_dim", 2}});
  EXPECT_EQ(result("concat", {heads4(), rope}, {{"dim", number(-1)}}),
            "bf16[batch=2, seq=6, heads=4, head_dim=10]");
  EXPECT_THAT(result("concat", {token, x}, {{"dim", number(0)}}),
              HasSubstr("operand 0 lacks the joined dimension 0"));
  EXPECT_THAT(result("concat", {token, x}, {{"dim", number(3)}}),
              HasSubstr("attribute 'dim' is 3, but the rank is 3"));
}

TEST(Add, BroadcastsTheSecondOperand) {
  const TensorType x = bf16({{"batch", 4}, {"seq", 6}, {"hidden", 8}});
  const TensorType positions = bf16({{"seq", 6}, {"hidden", 8}});
  EXPECT_EQ(result("add", {x, positions}), to_string(x));
  EXPECT_THAT(result("add", {positions, x}), HasSubstr("only the second one is broadcast"));
}

TEST(Moe, SizesFollowTheExpectedLoad) {
  const TensorType x = bf16({{"batch", 2}, {"seq", 10}, {"hidden", 8}});
  const TensorType probs{DType::kF32, {{"batch", 2}, {"seq", 10}, {"experts", 8}}};
  EXPECT_EQ(result("moe_dispatch", {x, probs}, {{"top_k", number(2)}}),
            "bf16[experts=8, batch=2, seq=3, hidden=8]");
  EXPECT_THAT(result("moe_dispatch", {x, probs}, {{"top_k", number(9)}}),
              HasSubstr("attribute 'top_k' is 9, with 8 experts"));
  const TensorType y = bf16({{"experts", 8}, {"batch", 2}, {"seq", 2}, {"hidden", 8}});
  EXPECT_THAT(result("moe_combine", {y, probs}, {{"top_k", number(2)}}),
              HasSubstr("2 rows per expert cannot hold 10 tokens for 2 of 8 experts"));
  const TensorType w = bf16({{"experts", 8}, {"hidden", 8}});
  EXPECT_THAT(result("moe_router", {x, w}, {{"top_k", number(2)}, {"groups", number(3)}}),
              HasSubstr("which does not divide 8 experts"));
}

TEST(OneDim, SliceTransposeRollPadPool) {
  const TensorType x = bf16({{"batch", 4}, {"seq", 6}, {"hidden", 8, 4}});
  EXPECT_EQ(result("slice", {x}, {{"dim", number(2)}, {"start", number(4)}, {"length", number(4)}}),
            "bf16[batch=4, seq=6, hidden=4/4]");
  EXPECT_THAT(
      result("slice", {x}, {{"dim", number(1)}, {"start", number(3)}, {"length", number(4)}}),
      HasSubstr("slice 3..7 is outside of dimension 'seq' of size 6"));
  EXPECT_EQ(result("transpose", {x}, {{"perm", Ints{2, 0, 1}}}),
            "bf16[hidden=8/4, batch=4, seq=6]");
  EXPECT_THAT(result("transpose", {x}, {{"perm", Ints{0, 0, 1}}}), HasSubstr("a permutation of"));
  EXPECT_THAT(result("roll", {x}, {{"dims", Ints{1}}, {"shifts", Ints{1, 2}}}),
              HasSubstr("equally many"));
  EXPECT_EQ(result("pad", {x}, {{"dim", number(1)}, {"before", number(1)}, {"after", number(2)}}),
            "bf16[batch=4, seq=9, hidden=8/4]");
  EXPECT_EQ(result("mean_pool", {x}, {{"dim", number(1)}}), "bf16[batch=4, hidden=8/4]");
}

}  // namespace
}  // namespace meshwright
