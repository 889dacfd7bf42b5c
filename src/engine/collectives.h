#pragma once

#include <span>
#include <vector>

#include "engine/comm.h"

namespace meshwright {

// Collectives over `group` (ranks in an order that all members give alike; includes this rank),
// composed from messages. Bytes that each sends are the least possible, those that the cost model
// counts; results are bitwise equal on all members. Tensors may be of unequal sizes, also empty.

/// Ring: each rank adds up one of the group's equal chunks, then these go around
/// (Patarasuk and Yuan 2009). 2 (W-1)/W of the tensor are sent by each.
void all_reduce(Comm& comm, std::span<const int> group, at::Tensor& data, bool maximum, int tag);

/// Ring. blocks[i] is given to the i-th member; returns the sum of what all give to this one.
/// (W-1)/W of the blocks are sent by each.
at::Tensor reduce_scatter(Comm& comm, std::span<const int> group, std::vector<at::Tensor> blocks,
                          int tag);

/// Ring. `blocks[me]` is this rank's; fills the others, which are allocated already.
void all_gather(Comm& comm, std::span<const int> group, std::vector<at::Tensor>& blocks, int tag);

/// Pairwise: in round r each gives to the r-th after it and takes from the r-th before it.
/// give[i] goes to the i-th member, take[i] is filled with what it gives. Undefined or empty
/// tensors: nothing goes.
void exchange(Comm& comm, std::span<const int> group, std::vector<at::Tensor>& give,
              std::vector<at::Tensor>& take, int tag);

/// Every rank's few numbers, by rank; all ranks call it together, with equally many. Control
/// traffic: no part of a program. Also a barrier.
std::vector<std::vector<double>> numbers_of_all(Comm& comm, std::span<const double> mine);

}  // namespace meshwright
