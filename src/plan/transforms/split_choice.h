#pragma once

#include <string_view>
#include <vector>

#include "plan/transforms/graph_writer.h"

// Private to co_shard: which factor of which operator is split.

namespace meshwright {

/// One operator's share of a region: the factor that is split, and where it stands.
struct SplitChoice {
  int factor = -1;               ///< Index in the operator's rule; -1 = the operator stays whole.
  bool summed = false;           ///< The factor is contracted: parts give partial sums.
  std::vector<int> input_dims;   ///< Per operand the dim that is split, or -1.
  std::vector<int> output_dims;  ///< Per result the same.

  bool split() const { return factor >= 0; }
};

/// The choice for every operator of the graph. Selected operators that have the factor (by its
/// label) are split; from them the choice spreads to other selected operators along the dims that
/// split values have, so that a factor may change its name on the way (query heads and key/value
/// heads). Operators in which the factor is frozen, missing or inside a group stay whole. Throws
/// Error when nothing is split, the factor is ambiguous, or `parts` does not divide it.
std::vector<SplitChoice> choose_splits(const Graph& graph, const std::vector<bool>& selected,
                                       std::string_view factor, int parts);

}  // namespace meshwright
