#pragma once

#include "search/problem.h"

namespace meshwright {

/// Searches pipeline depth and cut, virtual stages, data, tensor (+ sequence), context, expert and
/// expert-tensor degrees, state sharding, micro-batch and recomputation jointly. See
/// layout_search.cpp. Throws Error when a pinned value is illegal whatever the rest is.
SearchResult search_layouts(const Problem& problem, const SearchControl& control);

/// Judges given degrees with the best cut (even when they do not fit). Throws Error with the legal
/// values when they break a rule.
Judged judge_degrees(const Problem& problem, const Degrees& degrees);

}  // namespace meshwright
