#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.h"
#include "plan/facts.h"
#include "plan/plan.h"

namespace meshwright {

/// One broken rule of plan validity; the rules are numbered in docs/plan_format.md.
struct Violation {
  std::string rule;     ///< "P3".
  std::string message;  ///< Rule, then values.
  std::string hint;     ///< Legal values, or what to do.
};

/// Every rule that degrees must obey on a model and a cluster, under a schedule (empty = the one
/// that they imply). Empty = legal.
std::vector<Violation> check_degrees(const ModelFacts& facts, int device_count,
                                     std::int64_t global_batch, const Degrees& degrees,
                                     std::string_view schedule = {});

/// Whether they obey all, cheaply. For searches.
bool degrees_legal(const ModelFacts& facts, int device_count, std::int64_t global_batch,
                   const Degrees& degrees, std::string_view schedule = {});

/// Structure of a whole plan: stages, chunks and axes are consistent and cover the model once.
std::vector<Violation> check_plan(const Plan& plan, const Graph& graph,
                                  const std::vector<Segment>& segments, const Cluster& cluster);

}  // namespace meshwright
