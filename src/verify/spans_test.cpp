#include "verify/spans.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace meshwright {
namespace {

const Mesh kMesh{{{"a", 2, 1}, {"b", 4, 2}, {"c", 3, 8}}, 0};

TEST(Spans, EqualFunctionsHaveEqualIds) {
  SpanTable spans(kMesh);
  EXPECT_EQ(spans.split(8, 1, {0}), spans.split(8, 2, {0}));
  EXPECT_EQ(spans.split(8, 4, {}), spans.whole(8));
  EXPECT_NE(spans.split(8, 1, {0, 1}), spans.split(8, 1, {1, 0}));
  EXPECT_NE(spans.split(8, 1, {0}), spans.split(10, 1, {0}));
  // One unit on four devices: the others have nothing, and nothing is nothing wherever it lies.
  EXPECT_EQ(spans.axes(spans.split(1, 1, {1})), 0b10u);
  EXPECT_EQ(spans.axes(spans.split(8, 1, {0, 2})), 0b101u);
}

TEST(Spans, GatherJoinsNeighboursOnly) {
  SpanTable spans(kMesh);
  const SpanId nested = spans.split(24, 1, {0, 1});
  EXPECT_EQ(spans.gather(nested, 0b10), spans.split(24, 1, {0}));
  EXPECT_EQ(spans.gather(nested, 0b11), spans.whole(24));
  EXPECT_EQ(spans.gather(nested, 0b01), kNoSpan);  // Outer axis: pieces lie apart.
  EXPECT_EQ(spans.gather(nested, 0b100), nested);
  EXPECT_EQ(spans.gather(spans.split(24, 1, {0, 0}), 0b1), kNoSpan);  // The diagonal.
}

TEST(Spans, FactorsOfADimension) {
  SpanTable spans(kMesh);
  const std::int64_t sizes[] = {2, 4};
  SpanId factors[2];
  ASSERT_TRUE(spans.factor(spans.split(8, 1, {0, 1}), sizes, factors));
  EXPECT_EQ(factors[0], spans.split(2, 1, {0}));
  EXPECT_EQ(factors[1], spans.split(4, 1, {1}));
  ASSERT_TRUE(spans.factor(spans.split(8, 1, {0}), sizes, factors));
  EXPECT_EQ(factors[1], spans.whole(4));
  EXPECT_FALSE(spans.factor(spans.split(8, 1, {2}), sizes, factors));  // 3 + 3 + 2.
}

TEST(Spans, ProportionsAndDifferences) {
  SpanTable spans(kMesh);
  EXPECT_TRUE(spans.proportional(spans.split(8, 1, {1}), 8, spans.split(4, 1, {1}), 4));
  EXPECT_FALSE(spans.proportional(spans.split(8, 1, {1}), 8, spans.split(4, 1, {0}), 4));
  EXPECT_EQ(spans.first_difference(spans.split(8, 1, {0}), spans.split(8, 1, {2})),
            (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(spans.first_difference(spans.whole(8), spans.whole(8)), (std::vector<int>{0, 0, 0}));
  EXPECT_TRUE(spans.within(spans.split(8, 1, {0, 1}), spans.split(8, 1, {0})));
  EXPECT_FALSE(spans.within(spans.split(8, 1, {1}), spans.split(8, 1, {0})));
  EXPECT_TRUE(spans.covered(spans.split(8, 1, {1, 0}), spans.split(8, 1, {0, 1}), 0b11));
  EXPECT_FALSE(spans.covered(spans.split(8, 1, {1}), spans.split(8, 1, {0, 1}), 0b10));
}

// Every device by itself, against box_of.
RC_GTEST_PROP(SpansProperty, TablesAgreeWithBoxes, ()) {
  SpanTable spans(kMesh);
  const std::int64_t unit = *rc::gen::inRange(1, 4);
  const TensorType type{DType::kF32, {{"x", unit * *rc::gen::inRange(1, 20), unit}}};
  const auto random_form = [&] {
    Sharding s;
    s.rank = 1;
    for (int axis : {1, 0, 2}) {
      if (*rc::gen::inRange(0, 2) == 1) s.dims[0].push_back(axis);
    }
    return s;
  };
  const Sharding a = random_form(), b = random_form();
  const SpanId sa = spans.split(type.dims[0].size, unit, a.dims[0]);
  const SpanId sb = spans.split(type.dims[0].size, unit, b.dims[0]);
  bool equal = true, inside = true;
  for (int i = 0; i < kMesh.device_count(); ++i) {
    const auto c = mesh_coordinates(kMesh, i);
    Interval x = box_of(type, a, kMesh, c)[0], y = box_of(type, b, kMesh, c)[0];
    if (x.empty()) x = {};
    if (y.empty()) y = {};
    RC_ASSERT(spans.at(sa, c) == x);
    equal &= x == y;
    inside &= x.empty() || (x.begin >= y.begin && x.end <= y.end);
  }
  RC_ASSERT((sa == sb) == equal);
  RC_ASSERT(spans.within(sa, sb) == inside);
}

}  // namespace
}  // namespace meshwright
