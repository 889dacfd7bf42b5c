#pragma once

#include <memory>

#include "engine/comm.h"
#include "engine/rendezvous.h"
#include "engine/run_store.h"

namespace meshwright {

/// Ranks as processes that talk over TCP (c10d's Gloo). Returns when all ranks are connected.
/// Throws Error: what RunStore throws, ranks that are missing (all are named), no such interface.
/// A peer that dies ends a wait for it with PeerLost within a tenth of a second; one that only
/// falls silent, when Rendezvous::timeout is over. Ranks should meet in a barrier before they let
/// go of it, so that none closes what another still reads. Ignores SIGPIPE in this process.
std::unique_ptr<Comm> gloo_comm(const Rendezvous& rendezvous);
/// The same over a store that is open already; takes a connection of its own.
std::unique_ptr<Comm> gloo_comm(RunStore& store);

/// Makes ATen compute with one thread, as ranks that share a machine must: its spinning threads
/// slow one another down tenfold. Call before any tensor is computed.
void one_thread_per_rank();

}  // namespace meshwright
