#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace meshwright {

/// One number that a search may change.
struct SearchRange {
  double low = 0, high = 1;
  bool logarithmic = false;  ///< Steps multiply rather than add.
};

/// How far a value is from another one, in units of its range.
double range_distance(const SearchRange& range, double from, double to);

/// What is minimized. A value is tried, and then kept or taken back.
struct SearchTarget {
  /// The objective with value k changed to `candidate` and all others as they are.
  std::function<double(std::size_t k, double candidate)> tried;
  /// The candidate tried last stays.
  std::function<void(std::size_t k, double candidate)> kept;
  /// After every value of every sweep.
  std::function<void(int sweep, std::size_t k, double best)> progress;
};

/// Pattern search along coordinates (Hooke and Jeeves 1961): every value in turn is moved up and
/// down by its step, and kept where the objective falls below `best`; where neither helps, its step
/// is halved, until all steps are small. Deterministic. Returns the values.
std::vector<double> coordinate_search(std::vector<double> values,
                                      const std::vector<SearchRange>& ranges, double best,
                                      const SearchTarget& target);

}  // namespace meshwright
