#pragma once

#include <string>
#include <vector>

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

/// Whether `a` is the better answer: what fits first, then by the objective (by memory where
/// nothing fits).
bool ranks_before(const Problem& problem, const Judged& a, const Judged& b);

/// Sorts, keeps the best `top`, and says of each why it lost to the first.
void rank(const Problem& problem, std::vector<Judged>& judged, int top);

/// What a search comes to whose ranking this is.
SearchStatus status_of(const std::vector<Judged>& ranking, bool interrupted);

/// One sentence: what makes `loser` slower (or not fit) compared with `winner`.
std::string why_lost(const Problem& problem, const Judged& loser, const Judged& winner);

}  // namespace meshwright
