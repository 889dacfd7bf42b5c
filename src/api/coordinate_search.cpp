// Idea: efficiency numbers have few, mostly separate effects, so that moving one at a time finds a
// minimum without derivatives. Cost: about 2 * parameters * log(range / precision) evaluations per
// sweep. Loses to methods that turn the axes where two numbers compensate one another.
#include "api/coordinate_search.h"

#include <algorithm>
#include <cmath>

namespace meshwright {
namespace {

constexpr double kFirstStep = 0.25;  // Of a range, or of its logarithm.
constexpr double kLastStep = 0.004;
constexpr int kMaxSweeps = 60;
constexpr double kLeastGain = 1e-6;

double moved(const SearchRange& range, double value, double by) {
  const double to = range.logarithmic ? value * std::pow(range.high / range.low, by)
                                      : value + (range.high - range.low) * by;
  return std::clamp(to, range.low, range.high);
}

}  // namespace

double range_distance(const SearchRange& range, double from, double to) {
  return range.logarithmic ? std::log(to / from) / std::log(range.high / range.low)
                           : (to - from) / (range.high - range.low);
}

std::vector<double> coordinate_search(std::vector<double> values,
                                      const std::vector<SearchRange>& ranges, double best,
                                      const SearchTarget& target) {
  std::vector<double> step(values.size(), kFirstStep);
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    bool running = false;
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (step[k] < kLastStep) continue;
      running = true;
      bool better = false;
      for (const double by : {step[k], -step[k]}) {
        const double candidate = moved(ranges[k], values[k], by);
        if (candidate == values[k]) continue;
        const double now = target.tried(k, candidate);
        if (now >= best * (1 - kLeastGain)) continue;
        best = now;
        values[k] = candidate;
        target.kept(k, candidate);
        better = true;
        break;
      }
      if (!better) step[k] /= 2;
      if (target.progress) target.progress(sweep, k, best);
    }
    if (!running) break;
  }
  return values;
}

}  // namespace meshwright
