#pragma once

#include <string>

#include "plan/lower.h"
#include "search/problem.h"

namespace meshwright {

// The judge of every search: lowers, simulates and weighs plans with code that no searcher can
// touch.

/// Judges a plan with shared code: lower, simulate, memory against the devices.
Judged judge(const Problem& problem, Plan plan, bool keep_events = false);
/// The same with the tables of the problem's graph, for many plans.
Judged judge(const Problem& problem, Plan plan, SegmentLowering& lowering,
             bool keep_events = false);

/// Device memory that a plan may use on a stage.
Bytes usable_memory(const Problem& problem, const Stage& stage);

/// One sentence: what makes `loser` slower (or not fit) compared with `winner`.
std::string why_lost(const Problem& problem, const Judged& loser, const Judged& winner);

}  // namespace meshwright
