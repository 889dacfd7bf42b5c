#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "engine/run_store.h"

namespace meshwright {

/// The c10d store under a RunStore, for process groups.
struct StoreBackend {
  static c10::intrusive_ptr<c10d::Store> of(RunStore& store);
};

/// The first line of what libraries throw (c10 appends a stack trace).
std::string first_line(const std::exception& e);

}  // namespace meshwright
