#pragma once

#include "cluster/cluster.h"
#include "space/compile_space.h"

namespace meshwright {

/// log10 of the number of plans of a space on all devices of a cluster (or as many as its
/// restrictions say): the sum over legal degrees, micro-batches and chunks per stage of
///   (schedules that accept them) * (state shardings) * (ways to cut the pipeline at layers)
///   * (recompute modes)^(segments) * product over operators of (strategies),
/// where a strategy of an operator gives each mesh axis to one factor that may be split, with no
/// more parts than the factor has units, or to none; or splits sequences around the ring of the
/// context axes. What rules forbid is left out. Orders are not counted. -infinity = no plan.
/// Counted, not sampled: sums and products of exact counts in floating point.
double log10_size(const CompiledSpace& space, const Graph& graph,
                  const std::vector<Segment>& segments, const Cluster& cluster,
                  std::int64_t global_batch);

/// Strategies of one operator on a stage that obey these rules.
double count_strategies(const OpDef& def, const Rule& rule, const std::vector<TensorType>& inputs,
                        const Stage& stage, const std::vector<const SpaceRule*>& rules);

}  // namespace meshwright
