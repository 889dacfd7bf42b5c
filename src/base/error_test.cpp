#include "base/error.h"

#include <gmock/gmock.h>

#include "base/strong_id.h"
#include "base/units.h"

namespace meshwright {
namespace {

using testing::ContainsRegex;

TEST(Error, TextHasPlaceMessageAndHint) {
  EXPECT_STREQ(Error("is zero").what(), "is zero");
  EXPECT_STREQ(Error("is zero", "a.json:3").what(), "a.json:3: is zero");
  EXPECT_STREQ(Error("is zero", "a.json:3", "must be 1 to 8").what(),
               "a.json:3: is zero (must be 1 to 8)");
}

TEST(Error, WithinPrefixesThePlace) {
  const Error error = Error("is zero", "/layers", "must be positive").within("config.json");
  EXPECT_STREQ(error.what(), "config.json: /layers: is zero (must be positive)");
  EXPECT_EQ(error.where(), "config.json: /layers");
  EXPECT_STREQ(Error("is zero").within("config.json").what(), "config.json: is zero");
}

TEST(Error, ChecksNameTheirPlaceInTheCode) {
  try {
    MW_CHECK(1 + 1 == 3, "arithmetic fails");
    FAIL() << "no exception";
  } catch (const InternalError& e) {
    EXPECT_THAT(e.what(), ContainsRegex("error_test.cpp:[0-9]+: arithmetic fails .a bug in "));
  }
  MW_CHECK(true, "never seen");
}

TEST(Units, ComposeAsInPhysics) {
  EXPECT_EQ(Bytes(100) / BytesPerSecond(50), Seconds(2));
  EXPECT_EQ(Flops(1e12) / FlopsPerSecond(5e11), Seconds(2));
  EXPECT_EQ(Seconds(6) / Seconds(3), 2.0);
  Bytes sum(1);
  sum += Bytes(2) * 3 - Bytes(8) / 4;
  EXPECT_EQ(sum, Bytes(5));
  EXPECT_LT(Seconds(1), Seconds(2));
}

TEST(StrongId, IsInvalidUntilSet) {
  EXPECT_FALSE(OpId().valid());
  EXPECT_TRUE(OpId(0).valid());
  EXPECT_EQ(ValueId(7).index(), 7u);
  EXPECT_NE(std::hash<OpId>()(OpId(1)), std::hash<OpId>()(OpId(2)));
}

}  // namespace
}  // namespace meshwright
