#pragma once

#include "plan/plan.h"
#include "plan/schedule.h"

namespace meshwright {

/// Whether plans for a schedule are made by make_round_plan: it wants a graph that goes over the
/// stages several times (recycles, token slices), or chunks that all stages run together.
bool made_of_rounds(const Schedule& schedule);

/// The plan of these degrees under such a schedule.
/// - `slices`, `recycles`: segments "slice<t>.…" and "recycle<t>.…" form round t, others join the
///   round before them; every round is cut into pp chunks at the same layers.
/// - `takes_everywhere`: segments with a vocabulary (embedding, head) run on a stage of their own
/// over
///   all devices, split over the pipeline axis too (nnScaler's interlaced pipeline); layers between
///   them are cut into pp chunks.
/// Layers are cut so that the most work (FLOPs) of a stage is least. `degrees.vpp` does not matter.
/// Throws Error when a degree is illegal, or the model has no such rounds or segments.
Plan make_round_plan(const Graph& graph, const std::vector<Segment>& segments,
                     const Cluster& cluster, const Training& training, std::int64_t global_batch,
                     const Degrees& degrees, std::string_view schedule);

}  // namespace meshwright
