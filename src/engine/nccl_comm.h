#pragma once

#include <memory>

#include "engine/comm.h"
#include "engine/run_store.h"

namespace meshwright {

/// Ranks as processes with one GPU each (c10d's NCCL), whose current device is that GPU. Throws
/// Error when this libtorch was built without NCCL.
std::unique_ptr<Comm> nccl_comm(RunStore& store);

}  // namespace meshwright
