#include "api/validate_metrics.h"

#include <algorithm>
#include <cmath>

namespace meshwright {

double mean_absolute_error(const std::vector<MeasuredPair>& pairs) {
  double sum = 0;
  for (const MeasuredPair& p : pairs) sum += std::abs(p.predicted - p.measured) / p.measured;
  return pairs.empty() ? 0 : sum / static_cast<double>(pairs.size());
}

double median_error(const std::vector<MeasuredPair>& pairs) {
  if (pairs.empty()) return 0;
  std::vector<double> errors;
  for (const MeasuredPair& p : pairs) errors.push_back(p.predicted / p.measured - 1);
  std::sort(errors.begin(), errors.end());
  const std::size_t half = errors.size() / 2;
  return errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
}

RankCount count_ranks(const std::vector<MeasuredPair>& group) {
  RankCount count;
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double measured = group[i].measured - group[j].measured;
      const double predicted = group[i].predicted - group[j].predicted;
      if (measured == 0) continue;
      if (predicted == 0) {
        count.agree += 0.5;
        count.differ += 0.5;
      } else if ((measured > 0) == (predicted > 0)) {
        ++count.agree;
      } else {
        ++count.differ;
      }
    }
  }
  return count;
}

std::vector<MeasuredPair> pairs_of(const std::vector<GroupEntry>& group) {
  std::vector<MeasuredPair> pairs;
  for (const GroupEntry& entry : group) pairs.push_back(entry.time);
  return pairs;
}

double regret(const std::vector<GroupEntry>& group) {
  const bool choice =
      std::any_of(group.begin(), group.end(), [](const GroupEntry& e) { return e.allowed; });
  double best = 0, picked = 0, smallest = 0;
  for (const auto& [time, allowed] : group) {
    if (best == 0 || time.measured < best) best = time.measured;
    if (choice && !allowed) continue;
    if (picked == 0 || time.predicted < smallest) {
      smallest = time.predicted;
      picked = time.measured;
    } else if (time.predicted == smallest) {
      picked = std::max(picked, time.measured);
    }
  }
  return best > 0 ? picked / best - 1 : 0;
}

void Confusion::add(bool ran_out, bool predicted_fit) {
  if (ran_out)
    ++(predicted_fit ? accepted_but_full : full_as_predicted);
  else
    ++(predicted_fit ? fits_as_predicted : refused_but_fits);
}

}  // namespace meshwright
