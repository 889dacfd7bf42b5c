#pragma once

#include "ops/kernel.h"

namespace meshwright {

// Which token each row of an expert takes. The rows of a sample are as many as the expected load,
// rows = ceil(seq top_k / experts), and row j takes the first token of the window
// [floor(j seq / rows), floor((j + 1) seq / rows)) whose probability for the expert is not zero:
// local groups of capacity one (Lepikhin et al. 2021, GShard, section 3.2), so that the choice does
// not depend on how tokens are split. Later tokens of a window are dropped.
struct ExpertRows {
  Slot token;  // [b, rows, e]: its place among the part's tokens; 0 where there is none.
  Slot none;   // [b, rows, e]: nothing was taken.
};

/// `probs` is a part [b, s, e] in an interval `tokens` of `seq` positions, whose experts have the
/// interval `rows` of `all_rows`. Throws Error unless the tokens are those of the rows' windows.
ExpertRows expert_rows(KernelBuilder& k, Slot probs, const Box& box, const Interval& rows,
                       std::int64_t seq, std::int64_t all_rows);

}  // namespace meshwright
