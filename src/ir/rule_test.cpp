#include "ir/rule.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

TEST(Rule, ExpandsStarToTheOperandRank) {
  const int ranks[] = {3, 2};
  const Rule rule = parse_rule("* k+, n k+ -> * n", ranks);
  EXPECT_EQ(to_string(rule), "x0 x1 k+, n k+ -> x0 x1 n");
  EXPECT_EQ(rule.factors[2].kind, FactorKind::kSum);
}

TEST(Rule, GroupsTakeTheirUnknownSizeFromTheDimension) {
  const int ranks[] = {3, 4};
  Rule rule = parse_rule("b s (g r), b t g d^ -> b s (g r) d^", ranks);
  const TensorType q{DType::kBf16, {{"batch", 2, 1}, {"seq", 8, 1}, {"heads", 32, 1}}};
  const TensorType k{DType::kBf16,
                     {{"batch", 2, 1}, {"keys", 8, 1}, {"kv_heads", 4, 1}, {"head_dim", 16, 1}}};
  bind_rule(rule, std::vector<TensorType>{q, k});
  EXPECT_EQ(rule.factors[2].label, "kv_heads");
  EXPECT_EQ(rule.factors[3].size, 8);
  const auto out = infer_from_rule(rule, std::vector<TensorType>{q, k});
  EXPECT_EQ(to_string(out[0]), "bf16[batch=2, seq=8, heads=32, head_dim=16]");
}

TEST(Rule, ErrorsNameColumnAndReason) {
  const int ranks[] = {2, 2};
  const auto error = [&](const char* text) -> std::string {
    try {
      parse_rule(text, ranks);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_THAT(error("a b, b c -> a d"), HasSubstr("result factor 'd' is in no operand"));
  EXPECT_THAT(error("a b+, b c -> a c"), HasSubstr("two different marks"));
  EXPECT_THAT(error("a (b c -> a"), HasSubstr("column"));
  EXPECT_THAT(error("a b+ -> a b"), HasSubstr("summed factor 'b' in a result"));
  EXPECT_THAT(error("* b c d -> *"), HasSubstr("too small"));
}

TEST(Rule, SharedFactorsMustAgree) {
  const int ranks[] = {2, 2};
  Rule rule = parse_rule("a k+, b k+ -> a b", ranks);
  const TensorType x{DType::kBf16, {{"tokens", 4, 1}, {"hidden", 8, 1}}};
  const TensorType w{DType::kBf16, {{"ffn", 4, 1}, {"hidden", 9, 1}}};
  EXPECT_THROW(bind_rule(rule, std::vector<TensorType>{x, w}), Error);
}

TEST(Rule, HugeProductsAreRefused) {
  const TensorType huge{DType::kBf16, {{"tokens", kMaxDimSize, 1}}};
  const std::vector<TensorType> inputs{huge, huge, huge};
  const int ranks[] = {1, 1, 1};
  const auto error = [&](const char* text) -> std::string {
    try {
      Rule rule = parse_rule(text, ranks);
      bind_rule(rule, inputs);
      infer_from_rule(rule, inputs);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_THAT(error("a, b, (a b) -> a"), HasSubstr("group of dimension 'tokens' is too large"));
  EXPECT_THAT(error("a, b, c -> (a b)"), HasSubstr("result dimension 'tokens' is too large"));
}

TEST(Rule, PrimedDimensionsAreTiedButHaveTheirOwnSize) {
  const int ranks[] = {3, 2};
  Rule rule = parse_rule("e^ b s', b s -> b s", ranks);
  EXPECT_EQ(to_string(rule), "e^ b s', b s -> b s");
  EXPECT_TRUE(rule.inputs[0].dims[2].scaled);
  const TensorType y{DType::kBf16, {{"experts", 4}, {"batch", 2}, {"seq", 3}}};
  const TensorType probs{DType::kF32, {{"batch", 2}, {"seq", 12}}};
  const std::vector<TensorType> inputs = {y, probs};
  bind_rule(rule, inputs);
  EXPECT_EQ(to_string(infer_from_rule(rule, inputs)[0]), "bf16[batch=2, seq=12]");
  Rule lonely = parse_rule("a b' -> a b", std::vector<int>{2});
  EXPECT_THROW(bind_rule(lonely, std::vector<TensorType>{probs}), Error);
}

// Splits of "heads=64/16" fall on every other head of 8; splitting off the head dim leaves a unit
// of two heads, and merging gives the flat unit back.
TEST(Rule, UnitsFollowThroughGroups) {
  const TensorType flat{DType::kBf16, {{"heads", 64, 16}}};
  Rule split = parse_rule("(h d) -> h d", std::vector<int>{1});
  bind_rule(split, std::vector{flat}, std::vector<FactorSize>{{"d", 8}});
  const auto parts = infer_from_rule(split, std::vector{flat});
  EXPECT_EQ(to_string(parts[0]), "bf16[heads=8/2, d=8]");
  Rule merge = parse_rule("h d -> (h d)", std::vector<int>{2});
  bind_rule(merge, parts);
  EXPECT_EQ(infer_from_rule(merge, parts)[0], flat);
}

}  // namespace
}  // namespace meshwright
