#pragma once

#include "engine/rendezvous.h"
#include "run/job.h"

namespace meshwright {

/// One rank of a run from start to end: meets the others, trains, writes checkpoints; rank 0
/// prints. Returns the exit code: 0, or 1 when `verify` finds a difference above the tolerance.
/// Throws Error (the user's: ranks that disagree on the plan, a plan for another number of ranks,
/// loss that is not a number, …) and PeerLost.
int run_rank(const Job& job, const Rendezvous& rendezvous);

}  // namespace meshwright
