#include "run/device_view.h"

#include <gtest/gtest.h>

namespace meshwright {
namespace {

const Mesh kMesh{{{"dp", 2, 1}, {"tp", 2, 2}}, 0};
const TensorType kType{DType::kF32, {{"rows", 6}, {"columns", 8}}};

Buffer buffer(AxisList rows, AxisList columns, std::uint32_t partial = 0, AxisList flat = {}) {
  Buffer b;
  b.form.rank = 2;
  b.form.dims[0] = rows;
  b.form.dims[1] = columns;
  b.form.partial = partial;
  b.flat = flat;
  return b;
}

TEST(DeviceView, BoxesHaloAndFlatPieces) {
  const std::vector<int> here = {1, 0};
  Buffer b = buffer({0}, {1});
  EXPECT_EQ(local_buffer(kType, b, kMesh, here).box, (Box{{3, 6}, {0, 4}}));
  b.halo = {0, 2, 2};
  const LocalBuffer halo = local_buffer(kType, b, kMesh, here);
  EXPECT_EQ(halo.box, (Box{{1, 6}, {0, 4}}));  // None beyond the border.
  EXPECT_EQ(halo.core, (Box{{3, 6}, {0, 4}}));
  const LocalBuffer flat = local_buffer(kType, buffer({}, {1}, 0, {0}), kMesh, here);
  EXPECT_EQ(flat.begin, 12);
  EXPECT_EQ(flat.end, 24);
  EXPECT_EQ(flat.shape(), std::vector<std::int64_t>{12});
}

TEST(DeviceView, ExactlyOneDeviceOwnsEachRegion) {
  for (const Buffer& b : {buffer({}, {}), buffer({0}, {}), buffer({1}, {0}), buffer({}, {}, 0, {0}),
                          buffer({}, {1}, 1)}) {
    std::map<std::vector<std::int64_t>, int> owners;
    for (int i = 0; i < 4; ++i) {
      const auto here = mesh_coordinates(kMesh, i);
      const LocalBuffer local = local_buffer(kType, b, kMesh, here);
      std::vector<std::int64_t> region = {local.begin, local.end};
      for (const Interval& d : local.box) region.push_back(d.begin), region.push_back(d.end);
      // Parts of a sum are regions of their own.
      if (b.form.partial != 0) region.push_back(here[0]);
      owners[region] += is_owner(b, kMesh, here) ? 1 : 0;
    }
    for (const auto& [region, count] : owners) EXPECT_EQ(count, 1);
  }
}

TEST(DeviceView, WaysOfCollectives) {
  const std::vector<int> here = {0, 1};
  Instr gather;
  gather.kind = InstrKind::kCollective;
  gather.collective = CollectiveKind::kAllGather;
  gather.group = {1};
  const LocalCollective g =
      local_collective(gather, false, kType, buffer({1}, {}), buffer({}, {}), kMesh, here);
  EXPECT_EQ(g.way, ExchangeWay::kAllGather);
  EXPECT_EQ(g.ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(g.me, 1u);
  EXPECT_EQ(g.exchange.shares[1], (Box{{3, 6}, {0, 8}}));

  Instr scatter = gather;
  scatter.collective = CollectiveKind::kReduceScatter;
  const LocalCollective s =
      local_collective(scatter, true, kType, buffer({}, {}, 2), buffer({}, {1}), kMesh, here);
  EXPECT_EQ(s.way, ExchangeWay::kReduceScatter);
  EXPECT_EQ(s.exchange.shares[0], (Box{{0, 6}, {0, 4}}));

  Instr all_to_all = gather;
  all_to_all.collective = CollectiveKind::kAllToAll;
  const LocalCollective a =
      local_collective(all_to_all, false, kType, buffer({1}, {}), buffer({}, {1}), kMesh, here);
  EXPECT_EQ(a.way, ExchangeWay::kPieces);
  ASSERT_EQ(a.exchange.give.size(), 1u);
  EXPECT_EQ(a.exchange.give[0].source, (Box{{0, 3}, {0, 4}}));
  EXPECT_EQ(a.exchange.take[0].target, (Box{{0, 3}, {0, 4}}));
  EXPECT_EQ(a.exchange.keep[0].target, (Box{{3, 6}, {0, 4}}));
}

// Two devices that held rows get columns on two others.
TEST(DeviceView, TransfersBetweenMeshes) {
  const Mesh left{{{"tp", 2, 1}}, 0}, right{{{"tp", 2, 1}}, 2};
  Transfer::Item item;
  item.from = buffer({0}, {}).form;
  item.to = buffer({}, {0}).form;
  const LocalTransfer sender = local_transfer(kType, item, false, left, right, DeviceId(1));
  EXPECT_FALSE(sender.to);
  ASSERT_EQ(sender.give.size(), 2u);
  EXPECT_EQ(sender.give[0].peer, 2);
  EXPECT_EQ(sender.give[0].source, (Box{{0, 3}, {0, 4}}));
  const LocalTransfer receiver = local_transfer(kType, item, false, left, right, DeviceId(3));
  ASSERT_EQ(receiver.take.size(), 2u);
  EXPECT_EQ(receiver.take[1].peer, 1);
  EXPECT_EQ(receiver.take[1].target, (Box{{3, 6}, {0, 4}}));
  const LocalTransfer aligned =
      local_transfer(kType, {item.value, item.from, item.from}, true, left, right, DeviceId(3));
  ASSERT_EQ(aligned.take.size(), 1u);
  EXPECT_EQ(aligned.take[0].peer, 1);
}

}  // namespace
}  // namespace meshwright
