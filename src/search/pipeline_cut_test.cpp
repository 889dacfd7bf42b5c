#include "search/pipeline_cut.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

namespace meshwright {
namespace {

// All ways to cut: the smallest maximum, infinity when nothing fits.
double exhaustive(const CutInstance& in, std::size_t chunk, std::size_t begin) {
  const std::size_t n = in.time.size();
  double best = std::numeric_limits<double>::infinity();
  double time = 0;
  double memory = 0;
  for (std::size_t end = begin + 1; end <= n; ++end) {
    time += in.time[end - 1];
    memory += in.fixed_memory[end - 1] + in.saved[end - 1] * in.flight[chunk];
    if (memory > in.capacity[chunk]) break;
    if (in.may_end[end - 1] == 0 && end != n) continue;
    if (chunk + 1 == in.flight.size()) {
      if (end == n) best = std::min(best, time * in.slowness[chunk]);
    } else {
      best = std::min(best, std::max(time * in.slowness[chunk], exhaustive(in, chunk + 1, end)));
    }
  }
  return best;
}

RC_GTEST_PROP(PipelineCut, EqualsExhaustive, ()) {
  const int n = *rc::gen::inRange(1, 9);
  const int k = *rc::gen::inRange(1, std::min(n, 4) + 1);
  const auto numbers = [&](int count, int low, int high) {
    std::vector<double> v;
    for (int i = 0; i < count; ++i) v.push_back(*rc::gen::inRange(low, high));
    return v;
  };
  CutInstance in{numbers(n, 1, 20),
                 numbers(n, 0, 10),
                 numbers(n, 0, 5),
                 numbers(k, 1, 4),
                 numbers(k, 5, 60),
                 numbers(k, 1, 4),
                 {}};
  for (int i = 0; i < n; ++i) in.may_end.push_back(static_cast<char>(*rc::gen::inRange(0, 4) > 0));
  const Cut cut = cut_chain(in);
  const double best = exhaustive(in, 0, 0);
  RC_ASSERT(cut.feasible == (best < std::numeric_limits<double>::infinity()));
  if (cut.feasible) {
    RC_ASSERT(std::abs(cut.slowest - best) < 1e-5 * best);
    RC_ASSERT(cut.first.size() + 1 == in.flight.size());
  }
}

// The second chunk is too slow for the large segment, so the first one must not run up to it.
TEST(PipelineCut, ALargeSegmentWaitsForAFastChunk) {
  CutInstance in;
  in.time = {1, 1, 8, 1};
  in.fixed_memory = in.saved = {0, 0, 0, 0};
  in.may_end.assign(4, 1);
  in.flight.assign(3, 1);
  in.capacity.assign(3, 1);
  in.slowness = {3, 3, 1};
  const Cut cut = cut_chain(in);
  EXPECT_EQ(cut.slowest, 9);
  EXPECT_EQ(cut.first, (std::vector<int>{1, 2}));
}

TEST(PipelineCut, EqualLayersAreSpreadEvenly) {
  CutInstance in;
  in.time.assign(10, 1.0);
  in.fixed_memory.assign(10, 0);
  in.saved.assign(10, 0);
  in.may_end.assign(10, 1);
  in.flight.assign(4, 1);
  in.capacity.assign(4, 1);
  const Cut cut = cut_chain(in);
  EXPECT_EQ(cut.slowest, 3);
  EXPECT_EQ(cut.first, (std::vector<int>{2, 5, 7}));  // 2 3 2 3: never 3 3 3 1
}

// 22 equal layers and a heavy head on 2 stages of 2 chunks: chunks of 6 6 6 4+head leave the second
// stage with more; moving layers to the first stage evens the sums.
TEST(PipelineCut, StagesOfSeveralChunksAreBalanced) {
  CutInstance in;
  in.time.assign(23, 1.0);
  in.time.back() = 4;
  in.fixed_memory.assign(23, 0);
  in.saved.assign(23, 0);
  in.may_end.assign(23, 1);
  in.may_end[21] = 0;
  in.flight.assign(4, 1);
  in.capacity.assign(4, 1);
  const auto slowest_stage = [&](const Cut& cut) {
    double stage[2] = {0, 0};
    int begin = 0;
    for (int c = 0; c < 4; ++c) {
      const int end = c < 3 ? cut.first[static_cast<std::size_t>(c)] : 23;
      for (int i = begin; i < end; ++i) stage[c % 2] += in.time[static_cast<std::size_t>(i)];
      begin = end;
    }
    return std::max(stage[0], stage[1]);
  };
  Cut cut{true, 10, {4, 8, 12}};
  balance_stages(in, 2, 100, cut);
  EXPECT_EQ(slowest_stage(cut), 13);  // 26 / 2.
  // Memory still counts.
  Cut tight{true, 10, {4, 8, 12}};
  in.fixed_memory.assign(23, 1);
  in.capacity = {4, 100, 100, 100};
  balance_stages(in, 2, 100, tight);
  EXPECT_LE(tight.first[0], 4);
}

}  // namespace
}  // namespace meshwright
