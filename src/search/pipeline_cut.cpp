#include "search/pipeline_cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshwright {
namespace {

class Cutter {
 public:
  explicit Cutter(const CutInstance& instance)
      : in_(instance),
        n_(static_cast<int>(instance.time.size())),
        k_(static_cast<int>(instance.flight.size())) {
    slowness_ = instance.slowness;
    slowness_.resize(instance.flight.size(), 1);
    for (std::size_t c = 1; c < instance.flight.size(); ++c) {
      uneven_capacity_ |= slowness_[c] < slowness_[c - 1];
      uneven_capacity_ |= instance.flight[c] < instance.flight[c - 1] ||
                          instance.capacity[c] > instance.capacity[c - 1];
    }
    for (const std::vector<char>& banned : instance.banned) {
      // Being ahead may leave a chunk nothing but what it must not hold.
      uneven_capacity_ = true;
      banned_.push_back({0});
      for (char b : banned) banned_.back().push_back(banned_.back().back() + (b != 0));
    }
    last_end_.push_back(-1);
    for (int i = 1; i <= n_; ++i) {
      const auto s = static_cast<std::size_t>(i) - 1;
      if (i == n_ || instance.may_end[s] != 0) ends_.push_back(i);
      last_end_.push_back(ends_.empty() ? -1 : ends_.back());
      time_.push_back(time_[s] + instance.time[s]);
      fixed_.push_back(fixed_[s] + instance.fixed_memory[s]);
      saved_.push_back(saved_[s] + instance.saved[s]);
    }
  }

  bool enough_ends() const { return static_cast<int>(ends_.size()) >= k_; }

  // Furthest end of chunk c that starts at `begin` within the limit on time; `begin` when even the
  // shortest legal chunk does not fit. Leaves an end for every chunk that follows.
  int furthest(int chunk, int begin, double limit) const {
    const auto c = static_cast<std::size_t>(chunk);
    const auto b = static_cast<std::size_t>(begin);
    int low = begin;  // Fits (nothing does).
    int high = ends_[ends_.size() - static_cast<std::size_t>(k_ - chunk)] + 1;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (fits(c, b, static_cast<std::size_t>(middle), limit) ? low : high) = middle;
    }
    return std::max(begin, last_end_[static_cast<std::size_t>(low)]);
  }

  // Whether chunks `chunk`.. can cover the segments from `begin` on, greedily: enough when it
  // succeeds.
  bool greedy(int chunk, int begin, double limit) const {
    for (int c = chunk; c < k_; ++c) {
      const int end = furthest(c, begin, limit);
      if (end == begin) return false;
      begin = end;
    }
    return begin == n_;
  }

  // coverable[c][i]: chunks c.. can cover the segments from i on. Greedy steps are not enough,
  // since being ahead may leave a large segment to a chunk of small capacity.
  std::vector<std::vector<char>> coverable(double limit) const {
    std::vector<std::vector<char>> table(static_cast<std::size_t>(k_) + 1,
                                         std::vector<char>(static_cast<std::size_t>(n_) + 1, 0));
    table.back().back() = 1;
    for (int c = k_; c-- > 0;) {
      const std::vector<char>& next = table[static_cast<std::size_t>(c) + 1];
      std::vector<char>& here = table[static_cast<std::size_t>(c)];
      // Nearest end from here on after which the rest can be covered.
      std::vector<int> nearest(static_cast<std::size_t>(n_) + 2, n_ + 1);
      for (int end = n_; end > c; --end) {
        const auto e = static_cast<std::size_t>(end);
        nearest[e] = next[e] != 0 && last_end_[e] == end ? end : nearest[e + 1];
      }
      // The end that fits only moves forward as the beginning does.
      const auto k = static_cast<std::size_t>(c);
      int end = c;
      for (int begin = c; begin < n_; ++begin) {
        const auto i = static_cast<std::size_t>(begin);
        end = std::max(end, begin);
        while (end < n_ && fits(k, i, static_cast<std::size_t>(end) + 1, limit)) ++end;
        here[i] = static_cast<char>(nearest[i + 1] <= end);
      }
    }
    return table;
  }

  bool feasible(double limit) const {
    if (greedy(0, 0, limit)) return true;
    return uneven_capacity_ && enough_time(limit) && coverable(limit)[0][0] != 0;
  }

  // The same maximum, with chunks as even as possible: every chunk aims at its share of what is
  // left, as long as the rest can still be cut.
  std::vector<int> even(double limit) const {
    const std::vector<std::vector<char>> rest = coverable(limit);
    std::vector<int> first;
    int begin = 0;
    for (int c = 0; c + 1 < k_; ++c) {
      const int furthest_end = furthest(c, begin, limit);
      double speed = 0;
      for (int later = c; later < k_; ++later)
        speed += 1 / slowness_[static_cast<std::size_t>(later)];
      const double target = (time_.back() - time_[static_cast<std::size_t>(begin)]) /
                            (speed * slowness_[static_cast<std::size_t>(c)]);
      int best = furthest_end;
      double best_miss = -1;
      for (int end = begin + 1; end <= furthest_end; ++end) {
        const auto e = static_cast<std::size_t>(end);
        if (in_.may_end[e - 1] == 0 || rest[static_cast<std::size_t>(c) + 1][e] == 0) continue;
        const double miss = std::abs(time_[e] - time_[static_cast<std::size_t>(begin)] - target);
        if (best_miss >= 0 && miss >= best_miss) continue;
        best = end;
        best_miss = miss;
      }
      first.push_back(best);
      begin = best;
    }
    return first;
  }

 private:
  bool fits(std::size_t chunk, std::size_t begin, std::size_t end, double limit) const {
    return slowness_[chunk] * (time_[end] - time_[begin]) <= limit &&
           fixed_[end] - fixed_[begin] + in_.flight[chunk] * (saved_[end] - saved_[begin]) <=
               in_.capacity[chunk] &&
           (banned_.empty() || banned_[chunk][end] == banned_[chunk][begin]);
  }

  // Whether k chunks suffice when memory does not count and a chunk may be empty: necessary only.
  // (A slow chunk may have to leave a large segment to a faster one, so that greedy chunks can be
  // empty where a cut exists.)
  bool enough_time(double limit) const {
    int begin = 0;
    for (int c = 0; c < k_ && begin < n_; ++c) {
      const auto next = std::upper_bound(
          time_.begin() + begin, time_.end(),
          time_[static_cast<std::size_t>(begin)] + limit / slowness_[static_cast<std::size_t>(c)]);
      const int end = last_end_[static_cast<std::size_t>(next - time_.begin() - 1)];
      begin = std::max(begin, end);
    }
    return begin == n_;
  }

  const CutInstance& in_;
  const int n_;
  const int k_;
  // Greedy cuts are exact when no chunk can hold what an earlier one cannot, or must not hold what
  // an earlier one may.
  bool uneven_capacity_ = false;
  std::vector<double> slowness_;
  std::vector<double> time_ = {0}, fixed_ = {0}, saved_ = {0};  // Prefix sums.
  std::vector<std::vector<int>> banned_;                        // Prefix counts per chunk.
  std::vector<int> last_end_;  // Last legal end at or before a position, -1 for none.
  std::vector<int> ends_;      // Where a chunk may end, ascending; n is the last.
};

}  // namespace

Cut cut_chain(const CutInstance& instance) {
  Cut result;
  const std::size_t n = instance.time.size();
  if (instance.flight.empty() || n < instance.flight.size()) return result;
  const Cutter cutter(instance);
  if (!cutter.enough_ends()) return result;
  double total = 0;
  for (double t : instance.time) total += t;
  std::vector<double> slowness = instance.slowness;
  slowness.resize(instance.flight.size(), 1);
  double speed = 0;
  double worst = 0;
  for (double x : slowness) speed += 1 / x, worst = std::max(worst, x);
  double high = total * worst * (1 + 1e-9);
  if (!cutter.feasible(high)) return result;
  double low = total / speed * (1 - 1e-9);
  for (int i = 0; i < 40 && high - low > 1e-6 * total; ++i) {
    const double middle = (low + high) / 2;
    (cutter.feasible(middle) ? high : low) = middle;
  }
  result.feasible = true;
  result.first = cutter.even(high);
  int begin = 0;
  for (std::size_t c = 0; c <= result.first.size(); ++c) {
    const int end = c < result.first.size() ? result.first[c] : static_cast<int>(n);
    double time = 0;
    for (int i = begin; i < end; ++i) time += instance.time[static_cast<std::size_t>(i)];
    result.slowest = std::max(result.slowest, time * slowness[c]);
    begin = end;
  }
  return result;
}

void balance_stages(const CutInstance& in, int stages, double micro_batches, Cut& cut) {
  const int n = static_cast<int>(in.time.size());
  const int chunks = static_cast<int>(cut.first.size()) + 1;
  // Time of the step for these cuts; infinite when a chunk is empty, ends where it must not, or
  // does not fit.
  const auto step = [&](const std::vector<int>& first, double& slowest) {
    std::vector<double> stage(static_cast<std::size_t>(stages), 0);
    slowest = 0;
    int begin = 0;
    for (int c = 0; c < chunks; ++c) {
      const auto k = static_cast<std::size_t>(c);
      const int end = c + 1 < chunks ? first[k] : n;
      double time = 0;
      double memory = 0;
      for (int i = begin; i < end; ++i) {
        const auto s = static_cast<std::size_t>(i);
        time += in.time[s];
        memory += in.fixed_memory[s] + in.saved[s] * in.flight[k];
        if (!in.banned.empty() && in.banned[k][s] != 0) memory += in.capacity[k] + 1;
      }
      const bool legal =
          end > begin && (end == n || in.may_end[static_cast<std::size_t>(end) - 1] != 0);
      if (!legal || memory > in.capacity[k]) return std::numeric_limits<double>::infinity();
      if (!in.slowness.empty()) time *= in.slowness[k];
      const int on = in.stage.empty() ? c % stages : in.stage[k];
      stage[static_cast<std::size_t>(on)] += time;
      slowest = std::max(slowest, time);
      begin = end;
    }
    return micro_batches * *std::max_element(stage.begin(), stage.end()) + (stages - 1) * slowest;
  };
  constexpr int kPasses = 8;
  double best = step(cut.first, cut.slowest);
  bool moved = true;
  for (int pass = 0; pass < kPasses && moved; ++pass) {
    moved = false;
    for (std::size_t from = 0; from < cut.first.size(); ++from) {
      // A run of cuts shifted together moves one segment across several chunks.
      for (std::size_t to = from;
           to < cut.first.size() && to < from + static_cast<std::size_t>(stages); ++to) {
        for (const int shift : {-1, 1}) {
          std::vector<int> first = cut.first;
          for (std::size_t k = from; k <= to; ++k) first[k] += shift;
          double slowest = 0;
          const double time = step(first, slowest);
          if (time >= best * (1 - 1e-9)) continue;
          best = time;
          cut.first = std::move(first);
          cut.slowest = slowest;
          moved = true;
        }
      }
    }
  }
}

}  // namespace meshwright
