// Every plan computes what the model on one device computes: loss and parameters after three steps,
// float64, relative difference at most 1e-12.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/thread_run.h"
#include "models/random_plans.h"
#include "models/test_models.h"
#include "plan/check.h"
#include "plan/lower.h"

namespace meshwright {
namespace {

constexpr double kTolerance = 1e-12;

ExecutorSettings sgd_settings() {
  ExecutorSettings settings;
  settings.optimizer.learning_rate = 0.1;
  settings.clip_norm = 0.5;
  return settings;
}

TEST(Equality, RandomPlans) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomPlan r = random_plan(seed);
    r.plan.training.optimizer = "sgd";
    const Program program = lower(r.plan, r.graph, r.segments);
    try {
      const RunDifference d = run_threads(program, r.plan, r.graph, r.segments, 2, sgd_settings());
      EXPECT_LE(d.loss, kTolerance) << "seed " << seed;
      EXPECT_LE(d.parameters, kTolerance) << "seed " << seed << " " << d.worst;
    } catch (const std::exception& e) {
      ADD_FAILURE() << "seed " << seed << ": " << e.what();
    }
  }
}

}  // namespace
}  // namespace meshwright
