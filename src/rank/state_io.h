#pragma once

#include <cstdint>
#include <string>

#include "engine/executor.h"
#include "engine/reference.h"
#include "run/checkpoint.h"

namespace meshwright {

/// What a checkpoint of a run says besides tensors.
struct RunFacts {
  std::uint64_t seed = 1;
  std::string optimizer, dtype;
  std::int64_t global_batch = 1;
};
std::string facts_to_text(const RunFacts& facts);
/// Throws Error (place: `source`).
RunFacts facts_from_text(const std::string& text, const std::string& source);

/// Writes what this rank is the owner of: parameters as the optimizer has them, its moments, and
/// parameters that nothing trains.
void write_state(CheckpointWriter& writer, Executor& executor, const Graph& graph);

/// Fills all that this rank holds from a checkpoint of any cut. Throws Error.
void read_state(CheckpointReader& reader, Executor& executor, const Graph& graph);
/// The same for the model on one device.
void read_state(CheckpointReader& reader, Reference& reference, const Graph& graph);

}  // namespace meshwright
