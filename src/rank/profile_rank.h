#pragma once

#include "engine/rendezvous.h"
#include "run/profile_job.h"

namespace meshwright {

/// One rank of `meshwright profile`: measures what the plans of the job do that its table lacks,
/// all ranks the same operators at once, and communication over the groups of the plans. Rank 0
/// writes the table. Returns the exit code. Throws Error: an existing table of another device, of
/// other element types or threads; a plan for more devices than there are ranks (of which only the
/// operators could be measured) when there are several; ranks on unlike devices.
int profile_rank(const ProfileJob& job, const Rendezvous& rendezvous);

/// What the machine calls its processor.
std::string processor_name();

}  // namespace meshwright
