#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "import/import.h"
#include "plan/transform.h"
#include "search/problem.h"

namespace meshwright {

/// What to plan: enough text to import the model and read the cluster again, whatever stage one
/// starts from.
struct Request {
  std::string model;  ///< As for import_model; empty = `sizes`.
  GptSizes sizes;
  ImportOptions import;
  std::string cluster;
  Training training;
  std::string cost_model = "analytic";
  std::string profile;  ///< The table of the cost model "profiled"; empty otherwise.
  std::string engine = "default";
  Objective objective = Objective::kThroughput;
  Restrictions restrictions;
  std::string space;  ///< A plan-space file or the name of a shipped one; empty = none.
  std::vector<TransformRequest> transforms;  ///< Applied to the imported graph, before `space`'s.
};

/// A request with its model and cluster at hand.
struct Loaded {
  Request request;
  Model model;
  std::vector<Segment> segments;
  Cluster cluster;
  std::string model_name;
  std::shared_ptr<const CompiledSpace> space;   ///< Null = none.
  std::shared_ptr<const ProfileTable> profile;  ///< Null = none.
  std::vector<TransformRequest> transforms;     ///< That made `model.graph` what it is.

  /// Restrictions are what the request and the space both allow. Throws Error when they clash.
  Problem problem() const;
};

/// Imports the model and reads the cluster. Throws Error.
Loaded load(Request request);

/// A saved plan: request, plan, prediction.
Json plan_file_to_json(const Loaded& loaded, const Judged& judged);
struct PlanFile {
  Loaded loaded;
  Plan plan;
};
/// Throws Error, also for the first rule of plans that it breaks.
PlanFile read_plan_file(const std::string& path);
/// The same, but a plan may break rules: recheck reports them all.
PlanFile open_plan_file(const std::string& path);

/// "1", "2..8", "4.." as an allowed range. Throws Error naming `option`.
Allowed parse_allowed(std::string_view text, std::string_view option);

/// "pp=4,tp=8,mbs=2,zero=zero1,recompute=full": the restrictions of `base` with these pinned
/// instead of what it pins. Throws Error naming the key.
Restrictions parse_wish(std::string_view text, const Restrictions& base);

}  // namespace meshwright
