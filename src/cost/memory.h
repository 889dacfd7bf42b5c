#pragma once

#include <vector>

#include "cost/price.h"
#include "plan/program.h"

namespace meshwright {

/// Peak memory of one device of a stage, by what holds it. All in bytes.
struct MemoryBreakdown {
  Bytes parameters;  ///< Including the gathered copies of two segments under ZeRO-3.
  Bytes gradients;
  Bytes optimizer;      ///< Master copy and moments.
  Bytes activations;    ///< Saved for backward, times micro-batches in flight.
  Bytes transient;      ///< Live at the peak besides: logits and loss, gradients of activations,
                        ///< recomputed values.
  Bytes communication;  ///< Buffers of collectives.
  Bytes context;        ///< Runtime, libraries.
  Bytes fragmentation;

  Bytes total() const {
    return parameters + gradients + optimizer + activations + transient + communication + context +
           fragmentation;
  }
};

/// What a stage holds, gathered from its chunks.
struct StageContents {
  struct Held {
    const SegmentProgram* segment;
    int copies = 1;  ///< Segments of this kind in the chunk.
    int in_flight =
        1;  ///< Micro-batches of the chunk whose activations are kept at the worst moment.
  };
  std::vector<Held> held;
};

/// Kept per micro-batch in flight by an engine with these numbers.
Bytes saved_bytes(const SegmentProgram& segment, const Efficiency& efficiency);
/// Live besides at the segment's peak.
Bytes transient_bytes(const SegmentProgram& segment, const Efficiency& efficiency);

MemoryBreakdown stage_memory(const StageContents& contents, const Stage& stage,
                             const Training& training, const Efficiency& efficiency);

/// Micro-batches in flight per chunk of a lane at the moment when most activations are held, by
/// replaying its order: from the forward pass to the backward pass, or to the weight pass where
/// that is apart. `weight` is the saved bytes per micro-batch of every chunk of the plan.
std::vector<int> in_flight(const std::vector<ScheduleItem>& order,
                           const std::vector<double>& weight);

/// Peak memory per lane of a program; what several stages of a lane hold adds up.
std::vector<MemoryBreakdown> program_memory(const Program& program, const Plan& plan,
                                            Pricer& pricer);

}  // namespace meshwright
