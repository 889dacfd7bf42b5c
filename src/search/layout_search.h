#pragma once

#include "search/problem.h"

namespace meshwright {

/// Searches pipeline depth and cut, virtual stages, data, tensor (+ sequence), context, expert and
/// expert-tensor degrees, state sharding, micro-batch and recomputation jointly. See
/// layout_search.cpp. Throws Error when a pinned value is illegal whatever the rest is.
SearchResult search_layouts(const Problem& problem, const SearchControl& control);

/// Whether some layout is legal and obeys the problem's space (`fitting`: and is estimated to fit
/// in memory). Stops at the first. True when time runs out.
bool any_layout(const Problem& problem, bool fitting, double time_limit_seconds);

/// Judges given degrees with the best cut (even when they do not fit). Throws Error with the legal
/// values when they break a rule.
Judged judge_degrees(const Problem& problem, const Degrees& degrees);

}  // namespace meshwright
