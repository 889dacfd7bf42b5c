#include "mesh/sharding.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace meshwright
