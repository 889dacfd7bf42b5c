#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "api/request.h"
#include "engine/executor.h"

namespace meshwright {

/// What an instruction is, in words: "linear", "all_gather", "send".
std::string_view describe(const Instr& instr);
/// "step 3, forward of chunk 1, micro-batch 2, instruction 17: linear layers.1.mlp.up".
std::string place_text(const RunPlace& place, std::string_view kind, std::string_view op);

/// What a rank did and when, of the latest step.
class RunTimeline {
 public:
  struct Event {
    std::string name;
    Purpose purpose = Purpose::kForward;
    int micro_batch = -1;
    double start = 0, end = 0;  ///< Seconds from the start of the step.
  };
  void step(std::int64_t) {
    events_.clear();
    start_ = std::chrono::steady_clock::now();
  }
  void begin(const RunPlace& place);
  void end(const RunPlace& place);
  const std::vector<Event>& events() const { return events_; }

 private:
  double now() const;
  std::chrono::steady_clock::time_point start_{};
  double begun_ = 0;
  std::vector<Event> events_;
};

/// Gathers all ranks' timelines of the last step; rank 0 writes them beside the simulated one as a
/// Chrome trace (chrome://tracing, Perfetto). Throws Error when the file cannot be written.
void write_timeline(const std::string& path, const RunTimeline& timeline, Comm& comm,
                    const PlanFile& file);

}  // namespace meshwright
