#include "mesh/sharding.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace meshwright {
namespace {

const Mesh kMesh{{{"a", 2, 1}, {"b", 4, 2}, {"c", 3, 8}}, 0};
const TensorType kType{DType::kF32, {{"x", 48}, {"y", 96}, {"z", 24}}};

Sharding sharding(std::initializer_list<AxisList> dims, std::uint32_t partial = 0) {
  Sharding s;
  for (const AxisList& axes : dims) s.dims[s.rank++] = axes;
  s.partial = partial;
  return s;
}

// Every axis lands on a dimension, stays replicated, or is partial.
Sharding random_sharding(bool may_be_partial) {
  Sharding s;
  s.rank = 3;
  for (int axis = 0; axis < 3; ++axis) {
    const int place = *rc::gen::inRange(0, may_be_partial ? 5 : 4);
    if (place < 3) s.dims[static_cast<std::size_t>(place)].push_back(axis);
    if (place == 4) s.partial |= 1u << axis;
  }
  return s;
}

TEST(Sharding, LocalSizesAndText) {
  const Sharding s = sharding({{0, 1}, {}, {2}}, 0);
  EXPECT_EQ(to_string(s, kType, kMesh), "[x:a+b, y, z:c]");
  EXPECT_EQ(local_bytes(kType, s, kMesh).value, 48 / 8 * 96 * 24 / 3 * 4);
  EXPECT_EQ(to_string(sharding({{}, {}, {}}, 0b10), kType, kMesh), "[x, y, z] partial(b)");
}

TEST(Sharding, UnevenSplitsGiveTheLargestShard) {
  EXPECT_EQ(split_size(10, 1, 4), 3);
  EXPECT_EQ(split_size(28 * 128, 128, 8), 4 * 128);
}

TEST(Reshard, KnownMoves) {
  const double whole = 48.0 * 96 * 24 * 4;
  const auto one = [&](const Sharding& from, const Sharding& to) {
    const auto steps = reshard(kType, from, to, kMesh);
    EXPECT_EQ(steps.size(), 1u);
    return steps.at(0);
  };
  const Sharding plain = sharding({{}, {}, {}});
  EXPECT_EQ(one(sharding({{1}, {}, {}}), plain).kind, CollectiveKind::kAllGather);
  EXPECT_EQ(one(sharding({{1}, {}, {}}), plain).bytes.value, whole);
  EXPECT_EQ(one(sharding({{}, {}, {}}, 0b10), plain).kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(one(sharding({{}, {}, {}}, 0b10), sharding({{1}, {}, {}})).kind,
            CollectiveKind::kReduceScatter);
  EXPECT_EQ(one(sharding({{1}, {}, {}}), sharding({{}, {1}, {}})).kind, CollectiveKind::kAllToAll);
  EXPECT_EQ(one(sharding({{1}, {}, {}}), sharding({{}, {1}, {}})).bytes.value, whole / 4);
  EXPECT_TRUE(reshard(kType, plain, sharding({{1}, {}, {}}), kMesh).empty());  // A local slice.
}

// Following the steps lands on the target: every device ends up with as many bytes as the target's
// shard.
RC_GTEST_PROP(Reshard, AnyToAnyArrives, ()) {
  const Sharding from = random_sharding(true);
  const Sharding to = random_sharding(false);
  const auto steps = reshard(kType, from, to, kMesh);
  if (from == to) RC_ASSERT(steps.empty());
  double bytes = local_bytes(kType, from, kMesh).value;
  // Slices are local: axes replicated before and split after.
  for (int axis = 0; axis < 3; ++axis) {
    const auto splits = [&](const Sharding& s) {
      return s.dims[0].contains(axis) || s.dims[1].contains(axis) || s.dims[2].contains(axis);
    };
    if (!splits(from) && (from.partial >> axis & 1u) == 0 && splits(to)) {
      bytes /= kMesh.axes[static_cast<std::size_t>(axis)].size;
    }
  }
  for (const ReshardStep& step : steps) {
    const double n = kMesh.size(step.axes);
    RC_ASSERT(step.bytes.value > 0);
    if (step.kind == CollectiveKind::kReduceScatter) bytes /= n;
    if (step.kind == CollectiveKind::kAllGather) bytes *= n;
  }
  RC_ASSERT(std::abs(bytes - local_bytes(kType, to, kMesh).value) < 1e-6 * bytes);
}

}  // namespace
}  // namespace meshwright
