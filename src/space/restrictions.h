#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace meshwright {

/// Values that the user allows for one degree: between min and max and, unless the list is empty,
/// on the list.
struct Allowed {
  std::int64_t min = 1;
  std::int64_t max = std::int64_t{1} << 40;
  std::vector<std::int64_t> values;  ///< Ascending.

  bool contains(std::int64_t v) const {
    return v >= min && v <= max &&
           (values.empty() || std::binary_search(values.begin(), values.end(), v));
  }
  bool pinned() const { return min == max; }
  /// Whether single values are named, however unusual.
  bool listed() const { return pinned() || !values.empty(); }
  /// Whether anything is left out.
  bool restricts() const { return min > 1 || max < std::int64_t{1} << 40 || !values.empty(); }
  friend bool operator==(const Allowed&, const Allowed&) = default;
};

/// What the user pins or forbids.
struct Restrictions {
  Allowed pp, vpp, dp, tp, cp, ep, etp, micro_batch;
  std::optional<bool> sp;               ///< Sequence parallel; unset = on whenever tp > 1.
  std::vector<StateSharding> state;     ///< Empty = all.
  std::optional<bool> hybrid;           ///< One copy of sharded state per host; unset = either.
  std::vector<Recompute> recompute;     ///< Empty = all.
  std::optional<std::string> schedule;  ///< Unset = what vpp implies.
  double max_memory = 0.94;             ///< Share of device memory that may be used.
  int devices = 0;                      ///< Devices to use; 0 = all of the cluster.
};

}  // namespace meshwright
