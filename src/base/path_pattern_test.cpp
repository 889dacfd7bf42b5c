#include "base/path_pattern.h"

#include <gmock/gmock.h>

#include <string>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

TEST(PathPattern, Matches) {
  struct Case {
    const char *pattern, *path;
    bool matches;
  };
  for (const Case& c : {
           Case{"layers.3.attn", "layers.3.attn", true},
           {"layers.3.attn", "layers.3.attn.q", false},
           {"layers.*.attn", "layers.3.attn", true},
           {"layers.*.attn", "layers.3.mlp.attn", false},
           {"layers.*.*_proj", "layers.3.q_proj", true},
           {"layers.*.*_proj", "layers.3.q_proj.weight", false},
           {"**", "a", true},
           {"**", "a.b.c", true},
           {"**.q", "q", true},
           {"**.q", "a.b.q", true},
           {"**.q", "a.b.qq", false},
           {"a.**", "a", true},
           {"a.**.c", "a.c", true},
           {"a.**.c", "a.b.b.c", true},
           {"a.**.c.**.d", "a.c.b.c.d", true},
           {"stage_[0-1].*", "stage_1.x", true},
           {"stage_[0-1].*", "stage_2.x", false},
           {"stage_[0-1].*", "stage_10.x", false},
           {"l.[2-11].*", "l.10.x", true},
           {"l.[7].*", "l.7.x", true},
           {"*a*b*", "xaxbx", true},
           {"*ab", "aab", true},
           {"*", "", true},
           {"a*", "", false},
       }) {
    check_path_pattern(c.pattern);
    EXPECT_EQ(path_matches(c.pattern, c.path), c.matches) << c.pattern << " " << c.path;
  }
}

TEST(PathPattern, StarsTakeNoLong) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(path_matches(pattern, std::string(50'000, 'a') + "b"));
}

TEST(PathPattern, Errors) {
  const auto error = [](std::string_view pattern) {
    try {
      check_path_pattern(pattern);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(""), HasSubstr("has 1 to 256 characters, not 0"));
  EXPECT_THAT(error(std::string(257, 'a')), HasSubstr("not 257"));
  EXPECT_THAT(error("a..b"), HasSubstr("\"a..b\" has an empty component"));
  EXPECT_THAT(error("a.b**"), HasSubstr("has ** inside a component"));
  for (const char* bad : {"a[", "a]", "a[1", "a[-1]", "a[5-2]", "a[x]", "[99999999999999999999]"}) {
    EXPECT_THAT(error(bad), HasSubstr("has a range that is none")) << bad;
  }
}

}  // namespace
}  // namespace meshwright
