#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "ir/box.h"

namespace meshwright {

/// The elements [begin, end) of a box, flattened with the last dimension fastest.
struct FlatRegion {
  const Box& box;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Calls f(position in a's box, position in b's box, length) for the elements that both regions
/// hold, as runs that lie next to each other in both, in ascending order of both. The boxes are of
/// one tensor (16 dimensions at most) and of at most 2^60 elements. What comes before and after the
/// shared part is skipped by bisection, so that one of many flat shards costs only its own runs.
template <typename F>
void for_each_shared_run(const FlatRegion& a, const FlatRegion& b, F&& f) {
  constexpr std::size_t kMaxDims = 16;
  const std::size_t dims = a.box.size();
  MW_CHECK(dims == b.box.size() && dims <= kMaxDims, "regions of unlike tensors");
  if (a.begin >= a.end || b.begin >= b.end) return;

  std::int64_t size[kMaxDims], a_stride[kMaxDims], b_stride[kMaxDims];
  std::int64_t a_first = 0, b_first = 0, a_size = 1, b_size = 1;
  std::int64_t length = 1;   // Of a run: the innermost dimensions that are whole in both,
  std::size_t outer = dims;  // and one more. `outer` dimensions remain.
  bool whole = true;
  for (std::size_t d = dims; d-- > 0;) {
    const Interval& x = a.box[d];
    const Interval& y = b.box[d];
    const Interval both{std::max(x.begin, y.begin), std::min(x.end, y.end)};
    if (both.empty()) return;
    size[d] = both.size();
    a_stride[d] = a_size;
    b_stride[d] = b_size;
    a_first += (both.begin - x.begin) * a_size;
    b_first += (both.begin - y.begin) * b_size;
    a_size *= x.size();
    b_size *= y.size();
    if (whole) {
      length *= size[d];
      outer = d;
      whole = both == x && both == y;
    }
  }
  std::int64_t rows = 1;
  for (std::size_t d = 0; d < outer; ++d) rows *= size[d];

  std::int64_t at[kMaxDims] = {};
  std::int64_t p = 0, q = 0;  // Where row `at` begins in a and in b.
  const auto go_to = [&](std::int64_t row) {
    p = a_first;
    q = b_first;
    for (std::size_t d = outer; d-- > 0;) {
      at[d] = row % size[d];
      row /= size[d];
      p += at[d] * a_stride[d];
      q += at[d] * b_stride[d];
    }
  };
  std::int64_t row = 0;
  for (std::int64_t high = rows; row < high;) {
    const std::int64_t middle = row + (high - row) / 2;
    go_to(middle);
    if (p + length > a.begin && q + length > b.begin) {
      high = middle;
    } else {
      row = middle + 1;
    }
  }
  if (row == rows) return;
  go_to(row);
  for (; row < rows && p < a.end && q < b.end; ++row) {
    const std::int64_t skip = std::max({std::int64_t{0}, a.begin - p, b.begin - q});
    const std::int64_t stop = std::min({length, a.end - p, b.end - q});
    if (skip < stop) f(p + skip, q + skip, stop - skip);
    for (std::size_t d = outer; d-- > 0;) {
      p += a_stride[d];
      q += b_stride[d];
      if (++at[d] < size[d]) break;
      p -= size[d] * a_stride[d];
      q -= size[d] * b_stride[d];
      at[d] = 0;
    }
  }
}

}  // namespace meshwright
