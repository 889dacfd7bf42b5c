#pragma once

#include <memory>
#include <vector>

#include "plan/program.h"

namespace meshwright {

/// Lowers segments of one graph under one set of roles. Values are resharded where their producers' and
/// consumers' shardings differ; the backward pass is the adjoint; parameter gradients follow the gradient
/// rule. Keeps per-graph tables so that thousands of layouts can be lowered.
class SegmentLowering {
 public:
  SegmentLowering(const Graph& graph, const std::vector<Segment>& segments);
  ~SegmentLowering();
  SegmentLowering(const SegmentLowering&) = delete;
  SegmentLowering& operator=(const SegmentLowering&) = delete;

  /// One segment for one micro-batch of `micro_batch` sequences per replica of `dp`.
  SegmentProgram lower(int segment, const Stage& stage, const Training& training,
                       std::int64_t samples_per_micro_batch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Lowers a whole plan. The plan must be valid (check_plan).
Program lower(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments);

/// The instructions of a stage's optimizer step: gradient reduction of what its chunks hold, the optimizer,
/// gathers of sharded parameters. `shared` are parameters that another stage holds too (tied embeddings).
std::vector<Instr> lower_step(const Plan& plan, int stage,
                              const std::vector<const SegmentProgram*>& segments);

}  // namespace meshwright
