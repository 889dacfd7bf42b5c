#include "models/random_plans.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "plan/lower.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

// Random graphs, meshes, strategies, stages and uneven splits: every legal plan lowers and is
// proved.
RC_GTEST_PROP(RandomPlans, Verify, (std::uint64_t seed)) {
  const RandomPlan made = random_plan(seed);
  const Program program = lower(made.plan, made.graph, made.segments);
  RC_TAG(made.plan.schedule);
  RC_CLASSIFY(made.plan.stages.size() > 1);
  const VerifyReport report = verify(program, made.plan, made.graph, made.segments);
  if (!report.proved()) RC_FAIL(to_string(report) + print_graph(made.graph));
}

}  // namespace
}  // namespace meshwright
