#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "engine/comm.h"

namespace meshwright {

/// Ranks as threads of one process, for tests: each Comm belongs to one thread; data is copied, so
/// that a send's `wait` returns at once. A receive that waits longer than `limit` throws Error, and
/// so do all waits once a rank has called `abort`.
std::vector<std::unique_ptr<Comm>> thread_comms(
    int size, std::chrono::milliseconds limit = std::chrono::seconds(60));

/// Runs `body` once per rank, each in a thread of its own. A rank that throws aborts the others;
/// rethrows what the first of them threw.
void run_rank_threads(int size, const std::function<void(Comm&)>& body,
                      std::chrono::milliseconds limit = std::chrono::seconds(60));

}  // namespace meshwright
