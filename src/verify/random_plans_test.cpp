#include "models/random_plans.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "plan/lower.h"
#include "verify/evaluate.h"
#include "verify/mutate.h"
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

// What is proved is so: numbers computed instruction by instruction on every device are those of
// one device.
RC_GTEST_PROP(RandomPlans, ComputeTheSameNumbers, (std::uint64_t seed)) {
  const RandomPlan made = random_plan(seed);
  const Program program = lower(made.plan, made.graph, made.segments);
  Evaluator evaluator(made.plan, made.graph, made.segments, seed);
  const std::string difference = evaluator.difference(program);
  if (!difference.empty()) RC_FAIL(difference + "\n" + print_graph(made.graph));
}

// And what is spoiled is found: nothing that computes other numbers is proved.
RC_GTEST_PROP(RandomPlans, NoMutantIsMissed, (std::uint64_t seed)) {
  const RandomPlan made = random_plan(seed);
  const Program program = lower(made.plan, made.graph, made.segments);
  const MutantReport report =
      judge_mutants(program, made.plan, made.graph, made.segments, 20, seed);
  if (report.total().missed != 0) RC_FAIL(to_string(report) + print_graph(made.graph));
}

}  // namespace
}  // namespace meshwright
