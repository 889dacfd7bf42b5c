#include "engine/collectives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "engine/thread_comm.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

/// What rank `r` brings: small integers, so that sums are exact in every element type.
at::Tensor part(int r, std::int64_t numel, at::ScalarType type, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed * 1000 + r));
  std::vector<double> values(numel);
  for (double& v : values) v = static_cast<double>(random() % 17) - 8;
  return at::tensor(values, at::kDouble).to(type);
}

at::Tensor combined(const std::vector<int>& group, std::int64_t numel, at::ScalarType type,
                    int seed, bool maximum) {
  at::Tensor total = part(group[0], numel, type, seed);
  for (std::size_t i = 1; i < group.size(); ++i) {
    const at::Tensor next = part(group[i], numel, type, seed);
    total = maximum ? at::maximum(total, next) : total + next;
  }
  return total;
}

struct Case {
  int ranks = 2;
  std::vector<int> group;
  std::int64_t numel = 1;
  at::ScalarType type = at::kFloat;
};

Case random_case(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  Case c;
  c.ranks = 2 + static_cast<int>(random() % 7);
  std::vector<int> all(c.ranks);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  c.group.assign(all.begin(), all.begin() + 1 + random() % c.ranks);
  const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kInt};
  c.type = types[random() % 5];
  // Also fewer elements than members.
  c.numel = random() % 3 == 0 ? static_cast<std::int64_t>(random() % 10)
                              : static_cast<std::int64_t>(random() % 3000);
  return c;
}

bool is_member(const std::vector<int>& group, int rank) {
  return std::find(group.begin(), group.end(), rank) != group.end();
}

TEST(collectives, all_reduce_equals_the_direct_sum) {
  for (int seed = 0; seed < 60; ++seed) {
    const Case c = random_case(seed);
    const bool maximum = seed % 4 == 0;
    const at::Tensor expected = combined(c.group, c.numel, c.type, seed, maximum);
    const auto size = static_cast<std::int64_t>(c.group.size());
    std::vector<std::int64_t> bytes(c.ranks);
    run_rank_threads(c.ranks, [&](Comm& comm) {
      if (!is_member(c.group, comm.rank())) return;
      at::Tensor data = part(comm.rank(), c.numel, c.type, seed);
      all_reduce(comm, c.group, data, maximum, 3);
      ASSERT_EQ(data.scalar_type(), c.type);
      ASSERT_TRUE(at::equal(data, expected)) << "seed " << seed;
      bytes[comm.rank()] = comm.bytes_sent();
    });
    const auto item = static_cast<std::int64_t>(at::elementSize(c.type));
    std::int64_t total = 0;
    for (const int r : c.group) {
      if (c.numel % size == 0) {
        EXPECT_EQ(bytes[r], 2 * (size - 1) * (c.numel / size) * item) << "seed " << seed;
      }
      total += bytes[r];
    }
    EXPECT_EQ(total, 2 * (size - 1) * c.numel * item) << "seed " << seed;
  }
}

TEST(collectives, all_reduce_is_bitwise_equal_on_all) {
  // Sums that depend on the order of adding.
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> results(5);
    run_rank_threads(5, [&](Comm& comm) {
      at::Tensor data = at::linspace(0.1, 3.7 + comm.rank(), 1001).sin().to(type);
      const std::vector<int> group = {0, 3, 1, 4, 2};
      all_reduce(comm, group, data, false, 0);
      results[comm.rank()] = data;
    });
    for (int r = 1; r < 5; ++r) EXPECT_TRUE(at::equal(results[0], results[r]));
  }
}

TEST(collectives, reduce_scatter_and_all_gather_with_uneven_and_empty_blocks) {
  for (int seed = 0; seed < 60; ++seed) {
    const Case c = random_case(seed + 500);
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<std::int64_t> lengths;
    for (std::size_t i = 0; i < c.group.size(); ++i)
      lengths.push_back(random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 200));
    const std::int64_t numel = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const at::Tensor expected = combined(c.group, numel, c.type, seed, false);
    const auto expected_blocks = expected.split_with_sizes(lengths);
    const auto item = static_cast<std::int64_t>(at::elementSize(c.type));
    run_rank_threads(c.ranks, [&](Comm& comm) {
      if (!is_member(c.group, comm.rank())) return;
      const int size = static_cast<int>(c.group.size());
      const int me = static_cast<int>(std::find(c.group.begin(), c.group.end(), comm.rank()) -
                                      c.group.begin());
      const at::Tensor mine = part(comm.rank(), numel, c.type, seed);
      const at::Tensor before = mine.clone();
      const at::Tensor sum = reduce_scatter(comm, c.group, mine.split_with_sizes(lengths), 1);
      ASSERT_TRUE(at::equal(sum, expected_blocks[me])) << "seed " << seed;
      ASSERT_TRUE(at::equal(mine, before)) << "what was given is untouched";
      // All blocks but one's own are sent, in this direction and in the other.
      ASSERT_EQ(comm.bytes_sent(), size == 1 ? 0 : (numel - lengths[me]) * item);

      const std::int64_t so_far = comm.bytes_sent();
      std::vector<at::Tensor> blocks;
      for (const std::int64_t n : lengths) blocks.push_back(at::zeros({n}, mine.options()));
      blocks[me].copy_(sum);
      all_gather(comm, c.group, blocks, 2);
      ASSERT_TRUE(at::equal(at::cat(blocks), expected)) << "seed " << seed;
      ASSERT_EQ(comm.bytes_sent() - so_far,
                size == 1 ? 0 : (numel - lengths[(me + 1) % size]) * item);
    });
  }
}

TEST(collectives, exchange_gives_what_is_meant_for_each) {
  for (int seed = 0; seed < 40; ++seed) {
    const Case c = random_case(seed + 900);
    const int size = static_cast<int>(c.group.size());
    // Blocks (from, to), some empty, some not defined.
    const auto length = [&](int from, int to) { return (from * 7 + to * 5 + seed) % 4 * 3; };
    run_rank_threads(c.ranks, [&](Comm& comm) {
      if (!is_member(c.group, comm.rank())) return;
      const int me = static_cast<int>(std::find(c.group.begin(), c.group.end(), comm.rank()) -
                                      c.group.begin());
      std::vector<at::Tensor> give(size), take(size);
      std::int64_t bytes = 0;
      for (int i = 0; i < size; ++i) {
        if (length(me, i) > 0 || i % 2 == 0)
          give[i] = at::full({length(me, i)}, me * 10 + i, at::kShort);
        if (length(i, me) > 0) take[i] = at::zeros({length(i, me)}, at::kShort);
        if (i != me) bytes += 2 * length(me, i);
      }
      exchange(comm, c.group, give, take, 7);
      for (int i = 0; i < size; ++i) {
        if (!take[i].defined()) continue;
        ASSERT_TRUE((take[i] == i * 10 + me).all().item<bool>()) << "seed " << seed;
      }
      ASSERT_EQ(comm.bytes_sent(), bytes);
    });
  }
}

TEST(collectives, bool_tensors_and_tensors_that_want_gradients_pass) {
  run_rank_threads(3, [&](Comm& comm) {
    const std::vector<int> group = {0, 1, 2};
    std::vector<at::Tensor> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(at::full({5}, i == comm.rank(), at::kBool));
    all_gather(comm, group, blocks, 0);
    for (const at::Tensor& b : blocks) ASSERT_TRUE(b.all().item<bool>());
    at::Tensor weight = at::ones({2, 3}).requires_grad_(true);
    all_reduce(comm, group, weight, false, 0);
    ASSERT_TRUE((weight == 3).all().item<bool>());
    ASSERT_TRUE(weight.is_leaf());
  });
}

TEST(collectives, different_groups_at_the_same_time) {
  // Each rank is in a row and in a column; two tags keep apart pairs that share both ends.
  run_rank_threads(8, [&](Comm& comm) {
    const int row = comm.rank() / 4, column = comm.rank() % 4;
    const std::vector<int> rows = {row * 4, row * 4 + 1, row * 4 + 2, row * 4 + 3};
    const std::vector<int> columns = {column, column + 4};
    for (int round = 0; round < 20; ++round) {
      at::Tensor a = at::full({33}, comm.rank(), at::kDouble);
      at::Tensor b = at::full({7}, comm.rank(), at::kDouble);
      at::Tensor early = at::empty({2}, at::kDouble);
      const int partner = (comm.rank() + 4) % 8;
      const auto coming = comm.receive(early, partner, 9);
      const auto going = comm.send(at::full({2}, comm.rank(), at::kDouble), partner, 9);
      if ((comm.rank() + round) % 2 == 0) std::this_thread::yield();
      all_reduce(comm, rows, a, false, 1);
      all_reduce(comm, columns, b, false, 2);
      coming->wait();
      going->wait();
      ASSERT_TRUE((a == row * 16 + 6).all().item<bool>());
      ASSERT_TRUE((b == 2 * column + 4).all().item<bool>());
      ASSERT_TRUE((early == partner).all().item<bool>());
    }
  });
}

TEST(thread_comm, messages_of_one_tag_keep_their_order) {
  run_rank_threads(2, [&](Comm& comm) {
    if (comm.rank() == 0) {
      for (int i = 0; i < 6; ++i) comm.send(at::full({3}, i, at::kInt), 1, i % 2)->wait();
      return;
    }
    std::vector<at::Tensor> taken;
    std::vector<std::unique_ptr<Pending>> pending;
    for (int i = 0; i < 6; ++i) {
      taken.push_back(at::empty({3}, at::kInt));
      pending.push_back(comm.receive(taken.back(), 0, i % 2));
    }
    for (int i = 5; i >= 0; --i) pending[i]->wait();
    for (int i = 0; i < 6; ++i) ASSERT_EQ(taken[i][0].item<int>(), i);
  });
}

TEST(thread_comm, a_rank_that_fails_wakes_the_others) {
  std::vector<std::string> seen(4);
  try {
    run_rank_threads(4, [&](Comm& comm) {
      if (comm.rank() == 2) throw Error("loss is NaN in step 3");
      at::Tensor data = at::ones({8});
      try {
        all_reduce(comm, std::vector<int>{0, 1, 2, 3}, data, false, 0);
      } catch (const Error& e) {
        seen[comm.rank()] = e.message();
        throw;
      }
    });
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("loss is NaN in step 3"));
  }
  for (const int r : {0, 1, 3}) EXPECT_EQ(seen[r], "rank 2 failed: loss is NaN in step 3");
}

TEST(thread_comm, a_receive_gives_up_after_its_limit) {
  const auto comms = thread_comms(2, std::chrono::milliseconds(50));
  at::Tensor data = at::empty({1});
  const auto pending = comms[1]->receive(data, 0, 42);
  try {
    pending->wait();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "rank 1: no message from rank 0 with tag 42 within 50 ms");
  }
}

TEST(thread_comm, sizes_that_differ_and_strangers_are_bugs) {
  const auto comms = thread_comms(2);
  at::Tensor two = at::empty({2});
  comms[0]->send(at::empty({3}), 1, 0);
  EXPECT_THROW(comms[1]->receive(two, 0, 0), InternalError);
  EXPECT_THROW(comms[0]->send(two, 2, 0), InternalError);
  EXPECT_THROW(comms[0]->send(two, 0, 0), InternalError);
  EXPECT_THROW(all_reduce(*comms[0], std::vector<int>{1}, two, false, 0), InternalError);
}

}  // namespace
}  // namespace meshwright
