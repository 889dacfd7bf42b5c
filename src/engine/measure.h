#pragma once

#include <functional>

#include "engine/prepared.h"
#include "engine/regions.h"

namespace meshwright {

/// How long one piece of work takes: the median over repeats, and by how much the middle half of
/// them differ, in seconds.
struct Timing {
  double seconds = 0;
  double spread = 0;
  int repeats = 0;
};

/// Once to warm up, then up to `repeat` times (3 at least) as long as `seconds` are not over.
Timing time_work(int repeat, double seconds, const std::function<void()>& work);

/// What a segment is measured with.
struct MeasureSettings {
  Numerics numerics;
  DType gradient_dtype = DType::kF32;  ///< Of accumulated gradients.
  int repeat = 15;
  double seconds = 1;  ///< For the repeats of one instruction.
};

/// Runs the lists of a segment on one device as a run does, and times what is `wanted`: operators,
/// slices, sums, accumulation. Collectives are left out: what they would bring is drawn at random.
/// `measured` is told each time as it is found; when it returns false the rest is left.
/// Returns false then.
bool measure_segment(const PreparedSegment& segment, const Graph& graph, MicroBatchTables& tables,
                     std::int64_t samples, const Feeds& feeds, const MeasureSettings& settings,
                     const std::function<bool(const Instr&)>& wanted,
                     const std::function<bool(const Instr&, const Timing&)>& measured);

}  // namespace meshwright
