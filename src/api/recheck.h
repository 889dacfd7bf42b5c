#pragma once

#include <optional>
#include <vector>

#include "api/request.h"
#include "plan/check.h"

namespace meshwright {

/// What a plan file is worth today.
struct PlanCheck {
  /// Rules of docs/plan_format.md that it breaks; M1: a stage needs more memory than it may use.
  std::vector<Violation> violations;
  std::optional<Judged> judged;  ///< Unset when a rule other than M1 is broken.

  bool ok() const { return violations.empty(); }
};

/// Checks the structure of a plan, the degrees that its stages really have, and, when these hold,
/// the memory that it needs.
PlanCheck recheck(const PlanFile& file);

}  // namespace meshwright
