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

}  // namespace
}  // namespace meshwright
