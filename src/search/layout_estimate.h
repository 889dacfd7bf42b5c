#pragma once

#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "plan/schedule.h"
#include "search/layout_costs.h"
#include "search/problem.h"

namespace meshwright {

/// What a search believes of a layout before it is judged.
struct Estimate {
  Degrees degrees;
  std::vector<int> cuts;  ///< First segment of every chunk but the first.
  double seconds = 0;
  double overflow = 0;  ///< Bytes past the limit on the fullest stage; <= 0 fits.
  double least_memory =
      0;  ///< The same spread perfectly over the stages: what no cut can go below.
};

/// Closed formulas over the costs of segment classes: stage times from an exact cut, the pipeline's
/// fill and drain, the optimizer step. Only chooses what is judged.
class LayoutEstimator {
 public:
  explicit LayoutEstimator(const Problem& problem);
  LayoutEstimator(const LayoutEstimator&) = delete;
  LayoutEstimator& operator=(const LayoutEstimator&) = delete;

  /// What no cut can beat: compute and memory spread perfectly over the stages, one micro-batch in
  /// flight.
  Estimate bound(const Degrees& degrees);
  /// With the best cut; `balance` also evens what the chunks of a stage add up to. Infinite
  /// overflow when the model cannot be cut into so many chunks.
  Estimate estimate(const Degrees& degrees, bool balance = false);

  const ModelFacts& facts() const { return facts_; }

  /// Name of the first rule of the problem's space that a layout breaks; empty = none.
  std::string_view broken_rule(const Degrees& degrees);

 private:
  // Of every chunk of one replica, as its schedule has them; those of a second replica count with
  // the chunk that stands in their place.
  const std::vector<double>& flight_of(const Schedule& schedule, const ScheduleShape& shape);
  // How much slower than the priced devices those of a stage are, and what memory they offer.
  struct StageDevices {
    double slowness = 1;
    double usable = 0;
  };
  std::vector<StageDevices> stage_devices(const Degrees& d, const Stage& priced);
  double fixed_memory(const ClassCost& c, const Degrees& d, const Stage& stage) const;

  const Problem& problem_;
  ModelFacts facts_;
  Pricer pricer_;
  LayoutCostTable costs_;
  std::optional<LayoutFilter> filter_;
  std::vector<int> class_count_;        // Segments of each class.
  const Schedule* schedule_ = nullptr;  // Null = what the degrees imply.
  std::map<std::array<int, 3>, std::vector<double>> flights_;
};

}  // namespace meshwright
