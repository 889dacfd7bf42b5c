#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "mesh/region.h"

namespace meshwright {

/// One of `parts` additive parts of a value: the parts sum to the whole.
struct ValuePart {
  std::int64_t index = 0;
  std::int64_t parts = 1;

  bool whole() const { return parts == 1; }
  friend bool operator==(const ValuePart&, const ValuePart&) = default;
};

/// What one device holds of a logical tensor: an index interval per dimension, and one additive
/// part of the values there (nnScaler's vTensor; Lin et al. 2024, OSDI).
struct View {
  Box box;
  ValuePart part;
  friend bool operator==(const View&, const View&) = default;
};

/// The whole of a tensor.
View whole_view(const TensorType& type);

/// "[0:4, 8:16] part 1 of 2".
std::string to_string(const Box& box);
std::string to_string(const View& view);

bool empty(const Box& box);
/// Elements as a double (exact below 2^53).
double volume(const Box& box);
bool contains(const Box& outer, const Box& inner);
/// Nothing when the boxes share no element.
std::optional<Box> intersect(const Box& a, const Box& b);
/// `box` without `hole`, as disjoint boxes in index order. `hole` lies inside `box`.
std::vector<Box> subtract(const Box& box, const Box& hole);

/// A view of a view: `inner` counts its indices from the corner of `outer` and its parts within
/// outer's part. Throws Error when it does not fit into `outer` or the parts exceed 2^53.
View compose(const View& outer, const View& inner);

/// What two views share; nothing when they are disjoint. Throws Error when their value parts
/// overlap without one lying inside the other: no sum tells such parts apart.
std::optional<View> intersect(const View& a, const View& b);

/// A region that views cover some other number of times than once.
struct CoverFault {
  View region;
  int times = 0;
};

/// Nothing when the views, cut to `target`, tile it: every element in it once, with value parts
/// that sum to target's part. Otherwise the first such region in index order. Uneven boxes and
/// parts of different fineness are legal. Takes about (views * rank) steps for grids, and at most
/// views^2 in general. Throws Error when the parts have no common fineness below 2^53.
std::optional<CoverFault> find_cover_fault(const View& target, std::span<const View> views);
bool covers_once(const View& target, std::span<const View> views);

}  // namespace meshwright
