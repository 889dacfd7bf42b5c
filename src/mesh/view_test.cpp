#include "mesh/view.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <functional>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(View, TextNamesIntervalsAndParts) {
  EXPECT_EQ(to_string(View{{{0, 4}, {8, 16}}, {1, 2}}), "[0:4, 8:16] part 2 of 2");
  EXPECT_EQ(to_string(View{{{0, 4}}, {}}), "[0:4]");
  EXPECT_EQ(to_string(whole_view({DType::kF32, {{"x", 3}, {"y", 5}}})), "[0:3, 0:5]");
}

TEST(View, ComposeCountsFromTheOuterCorner) {
  const View outer{{{4, 8}, {0, 6}}, {1, 2}};
  EXPECT_EQ(compose(outer, {{{1, 3}, {2, 6}}, {2, 3}}), (View{{{5, 7}, {2, 6}}, {5, 6}}));
  EXPECT_THAT(error([&] { compose(outer, {{{1, 5}, {0, 6}}, {}}); }),
              HasSubstr("view [1:5, 0:6] does not fit into [4:8, 0:6] part 2 of 2"));
  EXPECT_THAT(error([&] { compose(outer, {{{0, 1}}, {}}); }), HasSubstr("rank 1 within one of"));
  EXPECT_THAT(error([&] { compose(outer, {{{0, 1}, {0, 1}}, {0, std::int64_t{1} << 53}}); }),
              HasSubstr("exceed 2^53"));
}

TEST(View, IntersectKnowsNestedParts) {
  const View half{{{0, 4}}, {0, 2}};
  EXPECT_EQ(intersect(half, View{{{2, 8}}, {1, 4}}), (View{{{2, 4}}, {1, 4}}));
  EXPECT_EQ(intersect(half, View{{{2, 8}}, {}}), (View{{{2, 4}}, {0, 2}}));
  EXPECT_EQ(intersect(half, View{{{2, 8}}, {2, 4}}), std::nullopt);
  EXPECT_EQ(intersect(half, View{{{4, 8}}, {}}), std::nullopt);
  EXPECT_THAT(error([&] { intersect(half, View{{{0, 4}}, {1, 3}}); }),
              HasSubstr("part 1 of 2 and part 2 of 3 overlap"));
}

TEST(View, SubtractLeavesDisjointBoxesInOrder) {
  EXPECT_THAT(subtract({{0, 4}, {0, 4}}, {{1, 2}, {2, 4}}),
              ElementsAre(Box{{0, 1}, {0, 4}}, Box{{1, 2}, {0, 2}}, Box{{2, 4}, {0, 4}}));
  EXPECT_TRUE(subtract({{0, 4}}, {{0, 4}}).empty());
}

TEST(View, CoverFindsGapsOverlapsAndMissingParts) {
  const View whole{{{0, 4}, {0, 4}}, {}};
  const View top{{{0, 3}, {0, 4}}, {}}, bottom{{{3, 4}, {0, 4}}, {}};
  EXPECT_TRUE(covers_once(whole, std::vector{top, bottom}));
  const auto gap = find_cover_fault(whole, std::vector{top});
  ASSERT_TRUE(gap);
  EXPECT_EQ(gap->times, 0);
  EXPECT_EQ(gap->region, bottom);
  const auto twice = find_cover_fault(whole, std::vector{top, bottom, View{{{1, 2}, {2, 3}}, {}}});
  ASSERT_TRUE(twice);
  EXPECT_EQ(twice->times, 2);
  EXPECT_EQ(twice->region, (View{{{1, 2}, {2, 3}}, {}}));
  // Two halves, one of them in two quarters; then without the last quarter.
  std::vector<View> parts = {top, {bottom.box, {0, 2}}, {bottom.box, {2, 4}}, {bottom.box, {3, 4}}};
  EXPECT_TRUE(covers_once(whole, parts));
  parts.pop_back();
  const auto part = find_cover_fault(whole, parts);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->times, 0);
  EXPECT_EQ(part->region, (View{bottom.box, {3, 4}}));
  EXPECT_TRUE(covers_once(View{{{2, 2}}, {}}, {}));
  EXPECT_TRUE(covers_once(View{}, std::vector{View{}}));
  EXPECT_FALSE(covers_once(View{}, {}));
}

TEST(View, PartsWithoutOneFinenessAreRefused) {
  const std::int64_t prime = 94906267;  // Two such exceed 2^53.
  const std::vector<View> views = {{{{0, 1}}, {0, prime}}, {{{0, 1}}, {0, prime + 2}}};
  EXPECT_THAT(error([&] { (void)covers_once({{{0, 1}}, {}}, views); }),
              HasSubstr("no common fineness below 2^53"));
}

int in_range(int begin, int end) { return *rc::gen::inRange(begin, end); }

// A random tiling of `view`: cut along a dimension or into value parts, again and again.
void random_tiling(const View& view, int depth, std::vector<View>& out) {
  const int way = in_range(0, depth > 0 ? 4 : 1);
  if (way == 0) {
    out.push_back(view);
  } else if (way == 1) {
    const int parts = in_range(2, 4);
    for (int i = 0; i < parts; ++i) {
      View inner{view.box, {i, parts}};
      for (Interval& d : inner.box) d = {0, d.size()};
      random_tiling(compose(view, inner), depth - 1, out);
    }
  } else {
    const auto d = static_cast<std::size_t>(in_range(0, static_cast<int>(view.box.size())));
    const std::int64_t parts = in_range(2, 4);
    for (std::int64_t i = 0; i < parts; ++i) {
      View piece = view;
      piece.box[d] = split_interval(view.box[d], 1, parts, i);
      if (!piece.box[d].empty()) random_tiling(piece, depth - 1, out);
    }
  }
}

View random_target() {
  View target;
  const int rank = in_range(1, 4);
  for (int d = 0; d < rank; ++d) {
    const int begin = in_range(0, 3);
    target.box.push_back({begin, begin + in_range(1, 6)});
  }
  return target;
}

RC_GTEST_PROP(ViewProperty, RandomTilingsCoverOnce, ()) {
  const View target = random_target();
  std::vector<View> tiles;
  random_tiling(target, 4, tiles);
  RC_ASSERT(covers_once(target, tiles));
  // Any tile missing or twice is found, where it is.
  const auto i = static_cast<std::size_t>(in_range(0, static_cast<int>(tiles.size())));
  std::vector<View> fewer = tiles, more = tiles;
  fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
  more.push_back(tiles[i]);
  for (const auto* wrong : {&fewer, &more}) {
    const auto fault = find_cover_fault(target, *wrong);
    RC_ASSERT(fault.has_value());
    RC_ASSERT(fault->times == (wrong == &fewer ? 0 : 2));
    RC_ASSERT(contains(tiles[i].box, fault->region.box));
  }
}

// Against counting element by element.
TEST(View, WhatLiesBesideTheTargetDoesNotCount) {
  const View target{{{1, 2}}, {}};
  const std::vector<View> views = {target, {{{0, 1}}, {}}, {{{2, 5}}, {}}};
  EXPECT_TRUE(covers_once(target, views));
}

RC_GTEST_PROP(ViewProperty, CoverAgreesWithCounting, ()) {
  const View target = random_target();
  std::vector<View> views;
  for (int n = in_range(1, 6); n > 0; --n) {
    View v = target;
    for (Interval& d : v.box) {
      if (in_range(0, 2) == 0) continue;
      const std::int64_t a = in_range(0, 9), b = in_range(0, 9);
      d = {std::min(a, b), std::max(a, b)};
    }
    views.push_back(v);
  }
  Box point(target.box.size());
  bool once = true;
  const std::function<void(std::size_t)> visit = [&](std::size_t d) {
    if (d == point.size()) {
      int times = 0;
      for (const View& v : views) times += !empty(v.box) && contains(v.box, point);
      once &= times == 1;
      return;
    }
    for (std::int64_t i = target.box[d].begin; i < target.box[d].end; ++i) {
      point[d] = {i, i + 1};
      visit(d + 1);
    }
  };
  visit(0);
  RC_ASSERT(covers_once(target, views) == once);
}

RC_GTEST_PROP(ViewProperty, SubtractAndIntersectPartitionTheBox, ()) {
  const View target = random_target();
  Box other = target.box;
  for (Interval& d : other) {
    d.begin += in_range(-2, 3);
    d.end = d.begin + in_range(1, 5);
  }
  const auto both = intersect(target.box, other);
  if (!both) return;
  std::vector<View> views = {{*both, {}}};
  for (Box& b : subtract(target.box, *both)) views.push_back({b, {}});
  RC_ASSERT(covers_once(target, views));
}

RC_GTEST_PROP(ViewProperty, ComposeIsAssociative, ()) {
  const View a = random_target();
  const auto inside = [](const View& outer) {
    View v;
    for (const Interval& d : outer.box) {
      const int size = static_cast<int>(d.size());
      const int begin = in_range(0, size);
      v.box.push_back({begin, in_range(begin, size) + 1});
    }
    v.part.parts = in_range(1, 4);
    v.part.index = in_range(0, static_cast<int>(v.part.parts));
    return v;
  };
  const View b = inside(a), c = inside(b);
  RC_ASSERT(compose(compose(a, b), c) == compose(a, compose(b, c)));
}

}  // namespace
}  // namespace meshwright
