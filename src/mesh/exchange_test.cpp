#include "mesh/exchange.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <map>

#include "base/error.h"
#include "mesh/view.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

Sharding sharding(std::initializer_list<AxisList> dims) {
  Sharding s;
  for (const AxisList& axes : dims) s.dims[s.rank++] = axes;
  return s;
}

const TensorType kType{DType::kF32, {{"x", 12}, {"y", 8}}};

std::vector<std::pair<int, int>> routes(const Exchange& e) {
  std::vector<std::pair<int, int>> list;
  for (const ExchangePiece& p : e.pieces) list.emplace_back(p.sender.value, p.receiver.value);
  return list;
}

TEST(Exchange, EqualPlacementsStayLocal) {
  const Mesh mesh{{{"a", 4, 1}}, 0};
  const Exchange e = exchange(kType, sharding({{0}, {}}), mesh, sharding({{0}, {}}), mesh);
  EXPECT_EQ(e.total.value, 0);
  EXPECT_THAT(routes(e), testing::ElementsAre(std::pair(0, 0), std::pair(1, 1), std::pair(2, 2),
                                              std::pair(3, 3)));
}

// Disjoint meshes with equal forms: device i sends to device i, replicas included.
TEST(Exchange, AlignedStagesPairUp) {
  const Mesh from{{{"tp", 2, 1}, {"dp", 2, 2}}, 0}, to{{{"tp", 2, 1}, {"dp", 2, 2}}, 4};
  const Exchange e = exchange(kType, sharding({{}, {0}}), from, sharding({{}, {0}}), to);
  EXPECT_THAT(routes(e), testing::ElementsAre(std::pair(0, 4), std::pair(1, 5), std::pair(2, 6),
                                              std::pair(3, 7)));
  EXPECT_EQ(e.most_sent.value, 12 * 4 * 4);
  EXPECT_EQ(e.most_received.value, 12 * 4 * 4);
  EXPECT_EQ(e.total.value, 4 * 12 * 4 * 4);
}

// Thirds to quarters: twelve rows in pieces of 3, from pieces of 4.
TEST(Exchange, UnevenPiecesAreCut) {
  const Mesh from{{{"a", 3, 1}}, 0}, to{{{"b", 4, 1}}, 3};
  const Exchange e = exchange(kType, sharding({{0}, {}}), from, sharding({{0}, {}}), to);
  ASSERT_EQ(e.pieces.size(), 6u);
  EXPECT_EQ(e.pieces[1], (ExchangePiece{DeviceId(4), DeviceId(0), {{3, 4}, {0, 8}}}));
  EXPECT_EQ(e.pieces[2], (ExchangePiece{DeviceId(4), DeviceId(1), {{4, 6}, {0, 8}}}));
  EXPECT_EQ(e.most_sent.value, 4 * 8 * 4);
  EXPECT_EQ(e.most_received.value, 3 * 8 * 4);
}

TEST(Exchange, MissingRegionsAreNamed) {
  const std::vector<Holding> senders = {{DeviceId(0), {{0, 4}}}};
  const std::vector<Holding> receivers = {{DeviceId(7), {{2, 6}}}};
  try {
    (void)exchange(senders, receivers, 4);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("device 7 needs [2:6], but no sender holds [4:6]"));
  }
}

TEST(Exchange, ScalarsGoToo) {
  const TensorType scalar{DType::kF32, {}};
  const Mesh from{{{"a", 2, 1}}, 0}, to{{{"a", 2, 1}}, 2};
  const Exchange e = exchange(scalar, {}, from, {}, to);
  EXPECT_EQ(e.pieces.size(), 2u);
  EXPECT_EQ(e.total.value, 8);
}

TEST(Exchange, SixteenThousandDevicesTakeMilliseconds) {
  const TensorType type{DType::kBf16, {{"batch", 4096}, {"seq", 8192}, {"hidden", 16384}}};
  const Mesh from{{{"tp", 8, 1}, {"dp", 2048, 8}}, 0}, to{{{"tp", 16, 1}, {"dp", 1024, 16}}, 8192};
  const auto start = std::chrono::steady_clock::now();
  const Bytes bytes =
      exchange_bytes(type, sharding({{1}, {0}, {}}), from, sharding({{1}, {0}, {}}), to);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_GT(bytes.value, 0);
}

Mesh random_mesh() {
  Mesh mesh;
  mesh.first_device = *rc::gen::inRange(0, 5);
  int stride = 1;
  for (int i = *rc::gen::inRange(0, 3); i > 0; --i) {
    const int size = *rc::gen::inRange(2, 4);
    mesh.axes.push_back({"a", size, stride});
    stride *= size;
  }
  return mesh;
}

Sharding random_form(const Mesh& mesh) {
  Sharding s;
  s.rank = 2;
  for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
    const int place = *rc::gen::inRange(0, 3);
    if (place < 2) s.dims[static_cast<std::size_t>(place)].push_back(a);
  }
  return s;
}

// Against brute force: exact cover, senders hold what they send, loads as counted, local copies
// taken, and bytes as the short form says.
RC_GTEST_PROP(ExchangeProperty, CoversEveryReceiverOnce, ()) {
  const Mesh from = random_mesh(), to = random_mesh();
  const Sharding f = random_form(from), t = random_form(to);
  const TensorType type{DType::kF32,
                        {{"x", *rc::gen::inRange(1, 14)}, {"y", 2 * *rc::gen::inRange(1, 7), 2}}};
  const Exchange e = exchange(type, f, from, t, to);
  std::map<int, Box> held;
  for (int i = 0; i < from.device_count(); ++i) {
    const auto c = mesh_coordinates(from, i);
    held[device_at(from, c).value] = box_of(type, f, from, c);
  }
  std::map<int, double> sent, received;
  std::map<int, std::vector<View>> got;
  for (const ExchangePiece& p : e.pieces) {
    RC_ASSERT(held.contains(p.sender.value));
    RC_ASSERT(contains(held[p.sender.value], p.box));
    got[p.receiver.value].push_back({p.box, {}});
    if (p.sender == p.receiver) continue;
    sent[p.sender.value] += volume(p.box) * 4;
    received[p.receiver.value] += volume(p.box) * 4;
  }
  double most_sent = 0, most_received = 0, total = 0;
  for (const auto& [d, b] : sent) most_sent = std::max(most_sent, b), total += b;
  for (const auto& [d, b] : received) most_received = std::max(most_received, b);
  RC_ASSERT(e.most_sent.value == most_sent);
  RC_ASSERT(e.most_received.value == most_received);
  RC_ASSERT(e.total.value == total);
  RC_ASSERT(exchange_bytes(type, f, from, t, to).value == std::max(most_sent, most_received));
  for (int i = 0; i < to.device_count(); ++i) {
    const auto c = mesh_coordinates(to, i);
    const int device = device_at(to, c).value;
    const View target{box_of(type, t, to, c), {}};
    RC_ASSERT(covers_once(target, got[device]));
    double local = 0;
    if (held.contains(device)) {
      if (const auto own = intersect(target.box, held[device])) local = volume(*own) * 4;
    }
    RC_ASSERT(received[device] == volume(target.box) * 4 - local);
  }
}

// Overlapping senders (halos): still every element once.
RC_GTEST_PROP(ExchangeProperty, OverlappingSendersSendEachElementOnce, ()) {
  std::vector<Holding> senders = {{DeviceId(100), {{0, 6}, {0, 6}}}};
  for (int i = 0; i < 4; ++i) {
    const int x = *rc::gen::inRange(0, 5), y = *rc::gen::inRange(0, 5);
    senders.push_back(
        {DeviceId(i), {{x, *rc::gen::inRange(x + 1, 7)}, {y, *rc::gen::inRange(y + 1, 7)}}});
  }
  const std::vector<Holding> receivers = {{DeviceId(1), {{0, 6}, {0, 6}}},
                                          {DeviceId(9), {{1, 5}, {2, 6}}}};
  const Exchange e = exchange(senders, receivers, 1);
  for (const Holding& r : receivers) {
    std::vector<View> got;
    for (const ExchangePiece& p : e.pieces) {
      if (p.receiver == r.device) got.push_back({p.box, {}});
    }
    RC_ASSERT(covers_once({r.box, {}}, got));
  }
}

}  // namespace
}  // namespace meshwright
