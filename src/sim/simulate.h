#pragma once

#include <array>
#include <vector>

#include "cost/memory.h"
#include "cost/price.h"
#include "plan/program.h"

namespace meshwright {

/// One item of a stage's order as it ran.
struct Event {
  ScheduleItem item;
  Seconds start, end;
};

/// Where one stage's step time went. The parts add up to the step time.
struct StageTime {
  std::array<Seconds, kPurposeCount>
      spent{};     ///< By purpose; only what is exposed of overlapped traffic.
  Seconds host;    ///< Fixed costs per micro-batch and step.
  Seconds bubble;  ///< Waiting for other stages.
};

struct Timeline {
  Seconds step;
  std::vector<StageTime> stages;
  std::vector<std::vector<Event>> events;  ///< Per stage; empty unless asked for.
  std::vector<MemoryBreakdown> memory;     ///< Per stage.

  /// The stage that waits least.
  int bottleneck() const;
};

/// Runs a program on the priced cluster: stages execute their orders, a forward (backward) pass
/// starts when the neighbouring chunk's result has arrived; transfers between two stages share
/// their link in turn; gradient reductions hide behind the last backward pass and parameter gathers
/// behind the first forward pass as far as the efficiency allows. Throws InternalError when the
/// order deadlocks.
Timeline simulate(const Program& program, const Plan& plan, Pricer& pricer,
                  bool keep_events = false);

}  // namespace meshwright
