#pragma once

#include "search/problem.h"

namespace meshwright {

/// Searches layouts under a schedule whose plans make_round_plan makes (restrictions.schedule names
/// it). See round_search.cpp.
SearchResult search_rounds(const Problem& problem, const SearchControl& control);

}  // namespace meshwright
