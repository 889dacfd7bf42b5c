#include "plan/refine_classes.h"

#include <map>

namespace meshwright {

void refine_classes(std::vector<Segment>& segments, const Overrides& overrides) {
  std::map<std::vector<std::int32_t>, int> classes;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    Segment& segment = segments[i];
    std::vector<std::int32_t> key = {segment.shape_class};
    key.push_back(i < overrides.recompute.size() ? overrides.recompute[i] : -1);
    for (int op = segment.first_op; op < segment.last_op; ++op) {
      const auto k = static_cast<std::size_t>(op);
      key.push_back(k < overrides.rule_of_op.size() ? overrides.rule_of_op[k] : -1);
    }
    segment.shape_class =
        classes.try_emplace(std::move(key), static_cast<int>(classes.size())).first->second;
  }
}

}  // namespace meshwright
