#pragma once

#include <vector>

#include "plan/program.h"

namespace meshwright {

/// Bytes that one device sends for an instruction, once: the least that its collective can do with
/// (rings; the sum of a tied parameter goes between two devices).
double sent_bytes(const Instr& instr, const Mesh& mesh);

/// Bytes that each device of a lane sends in one step, by lane: what its passes, transfers and its
/// stages' steps send. Of uneven splits the largest part counts for all, and of a transfer that is
/// not aligned its busiest sender.
std::vector<double> sent_bytes(const Program& program, const Plan& plan);

}  // namespace meshwright
