#include "base/spelling.h"

#include <gmock/gmock.h>

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(Spelling, NearestNames) {
  const std::vector<std::string> names = {"h100-sxm-80", "h200", "a100-sxm-80", "mi300x", "t4"};
  EXPECT_THAT(nearest_names("H100", names, 1), ElementsAre("h100-sxm-80"));
  EXPECT_THAT(nearest_names("mi300", names, 1), ElementsAre("mi300x"));
  EXPECT_THAT(nearest_names("a100_smx_80", names, 1), ElementsAre("a100-sxm-80"));
  EXPECT_THAT(nearest_names("", names, 99), SizeIs(5));
  EXPECT_THAT(nearest_names(std::string(1u << 20, 'x'), names, 2), SizeIs(2));
}

TEST(Spelling, QuotedIsSafeAndShort) {
  EXPECT_EQ(in_quotes("a\"b\n\x80"), "\"a\\\"b\\x0a\\x80\"");
  EXPECT_EQ(in_quotes(std::string(1000, 'x')).size(), 60u + 2 + 3);
}

}  // namespace
}  // namespace meshwright
