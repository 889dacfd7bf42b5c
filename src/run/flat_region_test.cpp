#include "run/flat_region.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <vector>

namespace meshwright {
namespace {

// Index in the whole tensor of every element of a region, by position in its box.
std::map<std::vector<std::int64_t>, std::int64_t> elements(const FlatRegion& region) {
  std::map<std::vector<std::int64_t>, std::int64_t> result;
  std::int64_t count = 1;
  for (const Interval& i : region.box) count *= std::max<std::int64_t>(i.size(), 0);
  for (std::int64_t p = std::max<std::int64_t>(region.begin, 0); p < std::min(region.end, count);
       ++p) {
    std::vector<std::int64_t> index(region.box.size());
    std::int64_t rest = p;
    for (std::size_t d = region.box.size(); d-- > 0;) {
      index[d] = region.box[d].begin + rest % region.box[d].size();
      rest /= region.box[d].size();
    }
    result[index] = p;
  }
  return result;
}

TEST(FlatRegion, RunsAreExactlyTheSharedElements) {
  std::mt19937_64 random(3);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % (n + 1)); };
  int shared = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const auto dims = static_cast<std::size_t>(below(4));
    Box boxes[2];
    std::int64_t begin[2], end[2];
    std::vector<std::int64_t> shape(dims);
    for (std::int64_t& size : shape) size = 1 + below(4);
    for (int k = 0; k < 2; ++k) {
      std::int64_t count = 1;
      for (const std::int64_t size : shape) {
        const std::int64_t first = below(2) == 0 ? below(size) : 0;
        boxes[k].push_back({first, below(2) == 0 ? first + below(size - first) : size});
        count *= boxes[k].back().size();
      }
      begin[k] = below(count);
      end[k] = begin[k] + below(count - begin[k]);
      if (below(2) == 0) begin[k] = 0, end[k] = count;
    }
    const FlatRegion a{boxes[0], begin[0], end[0]}, b{boxes[1], begin[1], end[1]};
    std::vector<std::pair<std::int64_t, std::int64_t>> expected, found;
    const auto of_b = elements(b);
    for (const auto& [index, p] : elements(a)) {
      if (const auto it = of_b.find(index); it != of_b.end()) expected.push_back({p, it->second});
    }
    for_each_shared_run(a, b, [&](std::int64_t p, std::int64_t q, std::int64_t length) {
      ASSERT_GT(length, 0);
      for (std::int64_t i = 0; i < length; ++i) found.push_back({p + i, q + i});
    });
    ASSERT_EQ(found, expected) << "trial " << trial;
    shared += !found.empty();
  }
  EXPECT_GT(shared, 3000);
}

TEST(FlatRegion, WholeInnerDimensionsMakeOneRun) {
  int runs = 0;
  const Box whole = {{0, 64}, {0, 32}, {0, 16}}, rows = {{8, 24}, {0, 32}, {0, 16}};
  for_each_shared_run({whole, 0, 64 * 32 * 16}, {rows, 0, 16 * 32 * 16},
                      [&](std::int64_t p, std::int64_t q, std::int64_t length) {
                        ++runs;
                        EXPECT_EQ(p, 8 * 32 * 16);
                        EXPECT_EQ(q, 0);
                        EXPECT_EQ(length, 16 * 32 * 16);
                      });
  EXPECT_EQ(runs, 1);
}

// One of a thousand flat shards is reached without a walk over the rows before it: 1e15 rows would
// not end.
TEST(FlatRegion, SkipsWhatComesBefore) {
  const std::int64_t rows = 1'000'000'000'000'000;
  const Box whole = {{0, rows}, {0, 8}}, half = {{0, rows}, {4, 8}};
  const std::int64_t middle = rows / 2 * 8;
  std::vector<std::int64_t> found;
  for_each_shared_run({whole, middle, middle + 14}, {half, 0, rows * 4},
                      [&](std::int64_t p, std::int64_t q, std::int64_t length) {
                        found.insert(found.end(), {p - middle, q - middle / 2, length});
                      });
  EXPECT_EQ(found, (std::vector<std::int64_t>{4, 0, 4, 12, 4, 2}));
}

}  // namespace
}  // namespace meshwright
