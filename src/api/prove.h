#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "api/request.h"
#include "verify/mutate.h"
#include "verify/verify.h"

namespace meshwright {

/// A plan file's program, proved or not.
struct Proof {
  VerifyReport report;
  std::optional<MutantReport> mutants;  ///< When asked for and the program is proved.
  Seconds lowering, verification;       ///< Wall time.
  /// Memory of the lane that has least left, by the cost model; more than `usable` is a failure of
  /// the report (check "memory").
  Bytes memory, usable;
  int fullest_lane = 0;
};

/// Lowers the plan and verifies the program, its memory against the devices' too; then makes and
/// judges `mutants` mutants of it. Throws Error when mutants of a model too large to evaluate are
/// asked for.
Proof prove(const PlanFile& file, std::int64_t mutants = 0, std::uint64_t seed = 1,
            const std::atomic<bool>* stop = nullptr);

}  // namespace meshwright
