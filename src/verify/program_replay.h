#pragma once

#include <memory>
#include <vector>

#include "verify/segment_replay.h"

// Private to the verifier.

namespace meshwright {

/// A pass, a send or the wait for a receive, as ScheduleItem names it, of any micro-batch.
struct OrderEvent {
  Phase phase = Phase::kForward;
  int index = 0;
  friend bool operator==(const OrderEvent&, const OrderEvent&) = default;
};

/// What must have happened on a lane before a pass or a send there: data that it reads.
struct OrderNeeds {
  std::vector<std::vector<OrderEvent>> forward, backward;  ///< Per chunk.
  std::vector<std::vector<OrderEvent>> send;               ///< Per transfer.
};

/// Throws Error when an index of the program leads nowhere.
void check_program_indices(const Program& program, const Plan& plan, const Graph& graph,
                           const std::vector<Segment>& segments);

class ProgramReplay {
 public:
  ProgramReplay(const Program& program, const Plan& plan, const Graph& graph,
                const std::vector<Segment>& segments, VerifyCounts& counts);

  /// Each throws Disproof.
  void replay_segments();
  void follow_links();
  void follow_orders() const;
  void replay_steps();

 private:
  SpanTable& spans_of(int stage) { return *spans_[static_cast<std::size_t>(stage)]; }
  const SegmentProgram& segment_program(int i) const {
    return program_.segments[static_cast<std::size_t>(i)];
  }
  const Program& program_;
  const Plan& plan_;
  const Graph& graph_;
  const std::vector<Segment>& segments_;
  VerifyCounts& counts_;
  GraphUses uses_;
  MicroBatchTables tables_;
  VerifyContext context_;
  std::vector<std::shared_ptr<SpanTable>> spans_;  // Per stage; equal meshes share one.
  OrderNeeds needs_;
};

/// Checks the orders of all lanes: every pass and transfer of every micro-batch once, after what it
/// needs, sends and receives in the same order at both ends, and no deadlock under blocking
/// semantics. Throws Disproof.
void follow_orders(const Program& program, const Plan& plan, const OrderNeeds& needs,
                   VerifyCounts& counts);

}  // namespace meshwright
