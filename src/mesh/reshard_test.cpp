#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "mesh/region.h"
#include "mesh/sharding.h"

namespace meshwright {
namespace {

const Mesh kMesh{{{"a", 2, 1}, {"b", 4, 2}, {"c", 3, 8}}, 0};
const TensorType kType{DType::kF32, {{"x", 48}, {"y", 96}, {"z", 24}}};
// Nothing divides evenly.
const TensorType kUneven{DType::kF32, {{"x", 17}, {"y", 35, 5}, {"z", 9}}};

Sharding sharding(std::initializer_list<AxisList> dims, std::uint32_t partial = 0) {
  Sharding s;
  for (const AxisList& axes : dims) s.dims[s.rank++] = axes;
  s.partial = partial;
  return s;
}

// Every axis lands on a dimension, stays replicated, or is partial; in any order.
Sharding random_sharding(bool may_be_partial) {
  Sharding s;
  s.rank = 3;
  std::vector<int> axes = {0, 1, 2};
  const int turn = *rc::gen::inRange(0, 6);
  for (int i = 0; i < turn; ++i) std::next_permutation(axes.begin(), axes.end());
  for (int axis : axes) {
    const int place = *rc::gen::inRange(0, may_be_partial ? 5 : 4);
    if (place < 3) s.dims[static_cast<std::size_t>(place)].push_back(axis);
    if (place == 4) s.partial |= 1u << axis;
  }
  return s;
}

bool contains(const Box& outer, const Box& inner) {
  for (std::size_t d = 0; d < outer.size(); ++d) {
    if (inner[d].empty()) return true;
    if (inner[d].begin < outer[d].begin || inner[d].end > outer[d].end) return false;
  }
  return true;
}

double volume(const Box& box) {
  double v = 1;
  for (const Interval& i : box) v *= static_cast<double>(std::max<std::int64_t>(i.size(), 0));
  return v;
}

double overlap(const Box& a, const Box& b) {
  Box both(a.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    both[d] = {std::max(a[d].begin, b[d].begin), std::min(a[d].end, b[d].end)};
  }
  return volume(both);
}

std::vector<int> group_of(const AxisList& axes, const std::vector<int>& at,
                          std::vector<std::vector<int>>& members) {
  members = {at};
  for (int axis : axes) {
    std::vector<std::vector<int>> more;
    for (const auto& m : members) {
      for (int i = 0; i < kMesh.axes[static_cast<std::size_t>(axis)].size; ++i) {
        more.push_back(m);
        more.back()[static_cast<std::size_t>(axis)] = i;
      }
    }
    members = std::move(more);
  }
  return at;
}

// Every device can make its result from what its group holds, and nothing is summed twice or not at
// all.
void check_step(const TensorType& type, const ReshardStep& step, const Sharding& from) {
  for (std::int64_t n = 0; n < kMesh.device_count(); ++n) {
    const std::vector<int> at = mesh_coordinates(kMesh, n);
    const Box before = box_of(type, from, kMesh, at);
    const Box after = box_of(type, step.to, kMesh, at);
    if (step.local) {
      RC_ASSERT(contains(before, after));
      RC_ASSERT(step.to.partial == from.partial);
      continue;
    }
    std::vector<std::vector<int>> members;
    group_of(step.axes, at, members);
    const bool sums =
        step.kind == CollectiveKind::kAllReduce || step.kind == CollectiveKind::kReduceScatter;
    RC_ASSERT((from.partial & ~step.to.partial) == (sums ? step.axes.mask() : 0u));
    double covered = 0;
    for (const auto& m : members) {
      const Box piece = box_of(type, from, kMesh, m);
      if (sums) {
        RC_ASSERT(piece == before);
        RC_ASSERT(contains(piece, after));
      }
      if (step.kind == CollectiveKind::kAllGather && volume(piece) > 0)
        RC_ASSERT(contains(after, piece));
      covered += overlap(piece, after);
    }
    // Replicas of a permute's sources may offer a piece more than once.
    if (sums) covered = volume(after);
    const bool permutes = step.kind == CollectiveKind::kPermute;
    RC_ASSERT((permutes ? covered >= volume(after) : covered == volume(after)));
  }
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
  EXPECT_TRUE(one(plain, sharding({{1}, {}, {}})).local);
}

// The order of axes on a dimension is part of the form: changing it moves data.
TEST(Reshard, OrderOfAxesMatters) {
  const auto steps = reshard(kType, sharding({{0, 1}, {}, {}}), sharding({{1, 0}, {}, {}}), kMesh);
  ASSERT_FALSE(steps.empty());
  EXPECT_GT(reshard_traffic(steps, kMesh), 0);
  // Only the innermost axis can be gathered by itself.
  const auto inner = reshard(kType, sharding({{0, 1}, {}, {}}), sharding({{0}, {}, {}}), kMesh);
  ASSERT_EQ(inner.size(), 1u);
  EXPECT_EQ(inner[0].kind, CollectiveKind::kAllGather);
  const auto outer = reshard(kType, sharding({{0, 1}, {}, {}}), sharding({{1}, {}, {}}), kMesh);
  EXPECT_EQ(outer[0].kind, CollectiveKind::kPermute);
}

RC_GTEST_PROP(Reshard, EveryStepIsPossibleAndTheLastArrives, ()) {
  const TensorType& type = *rc::gen::arbitrary<bool>() ? kType : kUneven;
  const Sharding from = random_sharding(true);
  const Sharding to = random_sharding(false);
  const auto steps = reshard(type, from, to, kMesh);
  Sharding at = from;
  for (const ReshardStep& step : steps) {
    check_step(type, step, at);
    at = step.to;
  }
  RC_ASSERT(at == to);
  if (from == to) RC_ASSERT(steps.empty());
}

// Never more than the way over full copies, nor than point-to-point.
RC_GTEST_PROP(Reshard, NoDetourIsCheaper, ()) {
  const Sharding from = random_sharding(true);
  const Sharding to = random_sharding(false);
  const Sharding plain = sharding({{}, {}, {}});
  const double direct = reshard_traffic(reshard(kType, from, to, kMesh), kMesh);
  const double detour = reshard_traffic(reshard(kType, from, plain, kMesh), kMesh) +
                        reshard_traffic(reshard(kType, plain, to, kMesh), kMesh);
  RC_ASSERT(direct <= detour * (1 + 1e-9));
  if (from.partial == 0) RC_ASSERT(direct <= local_bytes(kType, to, kMesh).value);
}

}  // namespace
}  // namespace meshwright
