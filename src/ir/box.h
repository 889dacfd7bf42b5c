#pragma once

#include <cstdint>
#include <vector>

namespace meshwright {

/// Half-open [begin, end).
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// An index interval per dimension of a logical tensor.
using Box = std::vector<Interval>;

}  // namespace meshwright
