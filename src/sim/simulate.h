#pragma once

#include <array>
#include <vector>

#include "cost/memory.h"
#include "cost/price.h"
#include "plan/program.h"

namespace meshwright {

/// One pass of a lane's order as it ran.
struct Event {
  ScheduleItem item;
  Seconds start, end;
};

/// Where one lane's step time went. The parts add up to the step time.
struct StageTime {
  std::array<Seconds, kPurposeCount>
      spent{};     ///< By purpose; only what is exposed of overlapped traffic.
  Seconds host;    ///< Fixed costs per micro-batch and step.
  Seconds bubble;  ///< Waiting for other lanes.
};

/// What devices do, lane by lane (see Program::lanes; where stages do not overlap, lane i is stage
/// i).
struct Timeline {
  Seconds step;
  std::vector<StageTime> stages;
  std::vector<std::vector<Event>> events;  ///< Empty unless asked for.
  std::vector<MemoryBreakdown> memory;

  /// The lane that waits least.
  int bottleneck() const;
};

/// Runs a program on the priced cluster: lanes execute their orders. A send starts when it is
/// issued and the link between the two stages is free; a wait for a receive ends when the message
/// is there; passes of a stage over several lanes start when all of them have come to it. Gradient
/// reductions hide behind the last backward (or weight) pass and parameter gathers behind the first
/// forward pass as far as the efficiency allows. Throws InternalError when the orders deadlock.
Timeline simulate(const Program& program, const Plan& plan, Pricer& pricer,
                  bool keep_events = false);

}  // namespace meshwright
