#pragma once

#include <vector>

namespace meshwright {

struct MeasuredPair {
  double measured = 0, predicted = 0;
};

/// Mean of |predicted - measured| / measured; 0 for no pairs.
double mean_absolute_error(const std::vector<MeasuredPair>& pairs);
/// Median of (predicted - measured) / measured, signed; 0 for no pairs.
double median_error(const std::vector<MeasuredPair>& pairs);

/// Pairs of one group that the prediction orders as measured, and against it; pairs of equal
/// measurements are left out, equal predictions count half each way.
struct RankCount {
  double agree = 0, differ = 0;

  /// Kendall's tau over all counted pairs, -1..1; 0 when there are none.
  double tau() const { return agree + differ > 0 ? (agree - differ) / (agree + differ) : 0; }
};
RankCount count_ranks(const std::vector<MeasuredPair>& group);

/// A run among those that it is compared with.
struct GroupEntry {
  MeasuredPair time;
  bool allowed = true;  ///< Predicted to fit in memory with the planner's headroom.
};
std::vector<MeasuredPair> pairs_of(const std::vector<GroupEntry>& group);

/// What following the prediction costs: the measured value of the allowed entry that is predicted
/// smallest, over the smallest measured of all, minus 1. Of entries predicted equal, the worst;
/// with none allowed, all count as allowed.
double regret(const std::vector<GroupEntry>& group);

/// Of "does it fit in memory".
struct Confusion {
  int fits_as_predicted = 0;  ///< Ran, and we say it fits.
  int refused_but_fits = 0;   ///< Ran, and we say it does not fit.
  int accepted_but_full = 0;  ///< Ran out of memory, and we say it fits.
  int full_as_predicted = 0;  ///< Ran out of memory, and we say so.

  int fits() const { return fits_as_predicted + refused_but_fits; }
  int full() const { return accepted_but_full + full_as_predicted; }
  bool has_both() const { return fits() > 0 && full() > 0; }
  /// Mean of the shares of either kind that are told right; needs both kinds.
  double balanced_accuracy() const {
    return (static_cast<double>(fits_as_predicted) / fits() +
            static_cast<double>(full_as_predicted) / full()) /
           2;
  }
  void add(bool ran_out, bool predicted_fit);
};

}  // namespace meshwright
