#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace meshwright {

/// A small random model and a random legal plan for it: operators of many kinds with skip
/// connections and tied parameters; stages with meshes of their own shape; for every operator
/// random axes on random factors, uneven splits included; recomputation, state sharding,
/// micro-batches and schedules. Deterministic in `seed`.
struct RandomPlan {
  Graph graph;
  std::vector<Segment> segments;
  Plan plan;
};
RandomPlan random_plan(std::uint64_t seed);

}  // namespace meshwright
