#include "search/pipeline_cut.h"

#include <algorithm>

namespace meshwright {
namespace {

class Cutter {
 public:
  explicit Cutter(const CutInstance& instance)
      : in_(instance),
        n_(static_cast<int>(instance.time.size())),
        k_(static_cast<int>(instance.flight.size())) {
    for (int i = 1; i <= n_; ++i) {
      if (i == n_ || instance.may_end[static_cast<std::size_t>(i) - 1] != 0) ends_.push_back(i);
    }
  }

  bool enough_ends() const { return static_cast<int>(ends_.size()) >= k_; }

  // Furthest end of chunk c that starts at `begin` within the limit on time; `begin` when even the
  // shortest legal chunk does not fit. Leaves an end for every chunk that follows.
  int furthest(int chunk, int begin, double limit) const {
    const auto c = static_cast<std::size_t>(chunk);
    const int last = ends_[ends_.size() - static_cast<std::size_t>(k_ - chunk)];
    double time = 0;
    double memory = 0;
    int end = begin;
    for (int i = begin; i < last; ++i) {
      const auto s = static_cast<std::size_t>(i);
      time += in_.time[s];
      memory += in_.fixed_memory[s] + in_.saved[s] * in_.flight[c];
      if (time > limit || memory > in_.capacity[c]) break;
      if (in_.may_end[s] != 0 || i + 1 == n_) end = i + 1;
    }
    return end;
  }

  bool feasible(double limit, std::vector<int>* ends) const {
    int begin = 0;
    for (int c = 0; c < k_; ++c) {
      const int end = furthest(c, begin, limit);
      if (end == begin) return false;
      if (ends != nullptr) ends->push_back(end);
      begin = end;
    }
    return begin == n_;
  }

  // The same maximum, with chunks as even as possible: every chunk aims at its share of what is
  // left, as long as the rest can still be cut.
  std::vector<int> even(double limit) const {
    std::vector<double> left(static_cast<std::size_t>(n_) + 1, 0);
    for (int i = n_; i-- > 0;) {
      left[static_cast<std::size_t>(i)] =
          left[static_cast<std::size_t>(i) + 1] + in_.time[static_cast<std::size_t>(i)];
    }
    std::vector<int> first;
    int begin = 0;
    for (int c = 0; c + 1 < k_; ++c) {
      const int furthest_end = furthest(c, begin, limit);
      const double target = left[static_cast<std::size_t>(begin)] / (k_ - c);
      int best = furthest_end;
      double best_miss = -1;
      for (int end = begin + 1; end <= furthest_end; ++end) {
        if (in_.may_end[static_cast<std::size_t>(end) - 1] == 0) continue;
        const double time =
            left[static_cast<std::size_t>(begin)] - left[static_cast<std::size_t>(end)];
        const double miss = std::abs(time - target);
        if (best_miss >= 0 && miss >= best_miss) continue;
        if (!rest_feasible(c + 1, end, limit)) continue;
        best = end;
        best_miss = miss;
      }
      first.push_back(best);
      begin = best;
    }
    return first;
  }

 private:
  bool rest_feasible(int chunk, int begin, double limit) const {
    for (int c = chunk; c < k_; ++c) {
      const int end = furthest(c, begin, limit);
      if (end == begin) return false;
      begin = end;
    }
    return begin == n_;
  }

  const CutInstance& in_;
  const int n_;
  const int k_;
  std::vector<int> ends_;  // Where a chunk may end, ascending; n is the last.
};

}  // namespace

Cut cut_chain(const CutInstance& instance) {
  Cut result;
  const std::size_t n = instance.time.size();
  if (instance.flight.empty() || n < instance.flight.size()) return result;
  const Cutter cutter(instance);
  if (!cutter.enough_ends()) return result;
  double total = 0;
  double largest = 0;
  for (double t : instance.time) total += t, largest = std::max(largest, t);
  double high = total * (1 + 1e-9);
  if (!cutter.feasible(high, nullptr)) return result;
  double low = std::max(largest, total / static_cast<double>(instance.flight.size())) * (1 - 1e-9);
  for (int i = 0; i < 40 && high - low > 1e-7 * total; ++i) {
    const double middle = (low + high) / 2;
    (cutter.feasible(middle, nullptr) ? high : low) = middle;
  }
  result.feasible = true;
  result.first = cutter.even(high);
  int begin = 0;
  for (std::size_t c = 0; c <= result.first.size(); ++c) {
    const int end = c < result.first.size() ? result.first[c] : static_cast<int>(n);
    double time = 0;
    for (int i = begin; i < end; ++i) time += instance.time[static_cast<std::size_t>(i)];
    result.slowest = std::max(result.slowest, time);
    begin = end;
  }
  return result;
}

}  // namespace meshwright
