#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "mesh/region.h"

// Private to the verifier.

namespace meshwright {

using SpanId = std::int32_t;
inline constexpr SpanId kNoSpan = -1;

/// Interval functions of one mesh: for every device the interval it has along one dimension or
/// factor. A function is kept as a table over the coordinates that it depends on, and equal
/// functions get equal ids: comparing two ids compares the intervals on all devices at once,
/// however many there are. Empty intervals count as equal.
class SpanTable {
 public:
  explicit SpanTable(const Mesh& mesh) : mesh_(mesh) {}

  const Mesh& mesh() const { return mesh_; }

  /// [0, size) on every device.
  SpanId whole(std::int64_t size) { return split(size, 1, {}); }
  /// [0, size) cut by the axes, outermost first, on multiples of `unit` (see box_of).
  SpanId split(std::int64_t size, std::int64_t unit, const AxisList& axes);
  /// Bits of the axes on which the interval depends.
  std::uint32_t axes(SpanId id) const { return entry(id).mask; }
  Interval at(SpanId id, std::span<const int> coordinates) const;

  /// The union over the devices that differ along `mask`, when their intervals tile an interval
  /// exactly once (counting only axes that the span depends on); kNoSpan otherwise.
  SpanId gather(SpanId id, std::uint32_t mask);
  /// Whether what a device needs of `inner` is on devices that differ from it along `mask` and hold
  /// `outer`, in pieces that may lie apart.
  bool covered(SpanId inner, SpanId outer, std::uint32_t mask);
  /// Whether `inner` lies in `outer` on every device.
  bool within(SpanId inner, SpanId outer);
  /// Whether `scaled` is to [0, scaled_size) what `id` is to [0, size), on every device.
  bool proportional(SpanId id, std::int64_t size, SpanId scaled, std::int64_t scaled_size) const;
  /// The spans of factors whose product is a dimension, outermost first; false when the dimension's
  /// intervals are no products of intervals of the factors.
  bool factor(SpanId id, std::span<const std::int64_t> sizes, std::span<SpanId> factors);

  /// Coordinates of the first device on which two spans differ (all zeros when none).
  std::vector<int> first_difference(SpanId a, SpanId b) const;

 private:
  // Values in order of the coordinates along the mask's axes, lowest axis fastest.
  struct Entry {
    std::uint32_t mask = 0;
    std::vector<Interval> table;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  struct EntryHash {
    std::size_t operator()(const Entry& entry) const;
  };
  const Entry& entry(SpanId id) const { return *entries_[static_cast<std::size_t>(id)]; }
  SpanId intern(Entry entry);
  std::int64_t table_size(std::uint32_t mask) const;
  // Calls visit(index) with coordinates_ set, for every combination along `mask`.
  template <typename Visit>
  void for_each(std::uint32_t mask, const Visit& visit);
  std::size_t index(const Entry& entry, std::span<const int> coordinates) const;

  struct SplitKey {
    std::int64_t size, unit;
    AxisList axes;
    friend bool operator==(const SplitKey&, const SplitKey&) = default;
  };
  struct SplitHash {
    std::size_t operator()(const SplitKey& key) const;
  };

  const Mesh& mesh_;
  std::vector<int> coordinates_;
  std::unordered_map<Entry, SpanId, EntryHash> ids_;
  std::vector<const Entry*> entries_;
  std::unordered_map<SplitKey, SpanId, SplitHash> splits_;
  std::unordered_map<std::uint64_t, SpanId> gathers_;
};

}  // namespace meshwright
