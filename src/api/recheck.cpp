#include "api/recheck.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format.h"
#include "plan/lanes.h"
#include "search/judge.h"

namespace meshwright {
PlanCheck recheck(const PlanFile& file) {
  const Loaded& l = file.loaded;
  PlanCheck check;
  check.violations = check_plan(file.plan, l.model.graph, l.segments, l.cluster);
  if (!check.ok()) return check;

  const ModelFacts facts = model_facts(l.model.graph, l.segments);
  const std::size_t lanes = lanes_of(file.plan).size();
  for (std::size_t s = 0; s < file.plan.stages.size(); ++s) {
    const Degrees degrees = degrees_of(file.plan, file.plan.stages[s], lanes);
    if (degrees.micro_batch == 0) {
      check.violations.push_back(
          {"P12",
           fmt::format("stage {}: global batch {} is not split evenly over {} micro-batches of {} "
                       "replicas",
                       s, file.plan.global_batch, file.plan.micro_batches, degrees.dp),
           {}});
      return check;
    }
    for (Violation& v : check_degrees(facts, l.cluster.device_count(), l.model.global_batch,
                                      degrees, file.plan.schedule)) {
      // Devices were counted one by one above, where stages may differ in number, and the schedule
      // was asked.
      if (v.rule == "P2" || v.rule == "P30") continue;
      const bool known = std::ranges::any_of(check.violations, [&](const Violation& w) {
        return w.rule == v.rule && w.message.ends_with(v.message);
      });
      if (known) continue;
      if (file.plan.stages.size() > 1) v.message = fmt::format("stage {}: {}", s, v.message);
      check.violations.push_back(std::move(v));
    }
  }
  if (!check.ok()) return check;

  const Problem problem = l.problem();
  check.judged = judge(problem, file.plan);
  for (std::size_t s = 0; s < lanes; ++s) {
    const Bytes used = check.judged->timeline.memory[s].total();
    const Bytes usable = usable_memory(problem, file.plan.stages[s]);
    if (used <= usable) continue;
    check.violations.push_back({"M1",
                                fmt::format("stage {} needs {} of {} that it may use", s,
                                            format_bytes(used), format_bytes(usable)),
                                "recompute more, shard more state, or cut the pipeline elsewhere"});
  }
  return check;
}

}  // namespace meshwright
