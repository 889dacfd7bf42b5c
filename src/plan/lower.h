#pragma once

#include <memory>
#include <vector>

#include "plan/graph_tables.h"
#include "plan/micro_batch_tables.h"
#include "plan/program.h"

namespace meshwright {

/// Lowers segments of one graph under one stage's roles. Values are resharded where their
/// producers' and consumers' shardings differ; the backward pass is the adjoint; parameter
/// gradients follow the gradient rule. Keeps per-graph tables so that thousands of layouts can be
/// lowered.
class SegmentLowering {
 public:
  SegmentLowering(const Graph& graph, const std::vector<Segment>& segments,
                  std::shared_ptr<const Overrides> overrides = nullptr);
  ~SegmentLowering();
  SegmentLowering(const SegmentLowering&) = delete;
  SegmentLowering& operator=(const SegmentLowering&) = delete;

  /// One segment for one micro-batch of `samples` sequences over all replicas together.
  /// `split_backward`: gradients of parameters get a list of their own. Throws Error when an
  /// override does not fit its operator.
  SegmentProgram lower(int segment, const Stage& stage, const Training& training,
                       std::int64_t samples, bool split_backward = false);

  /// Boundaries after which the same kinds of values cross have the same class. The last boundary
  /// (the end of the graph) has class -1.
  int boundary_class(int segment) const;
  int boundary_class_count() const;
  /// Bytes per device of the activations that cross the boundary after `segment`, per micro-batch.
  Bytes boundary_bytes(int segment, const Stage& stage, const Training& training,
                       std::int64_t samples);

  const GraphTables& tables() const;
  /// See GraphTables::whole_gradients.
  void set_whole_gradients(std::vector<ValueId> values);
  MicroBatchTables& types();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Equal segments of a stage.
struct HeldSegment {
  const SegmentProgram* segment = nullptr;
  int copies = 1;
  int index = 0;  ///< In Program::segments.
  /// Per parameter how many the stage holds; empty = one per copy, shared ones once.
  std::vector<int> parameters = {};
};

/// A stage's optimizer step: gradient reduction of what its segments hold, the optimizer, gathers
/// of sharded parameters.
StageProgram lower_step(const Stage& stage, const Training& training,
                        const std::vector<HeldSegment>& segments);

/// Lowers a whole plan. The plan must be valid (check_plan).
Program lower(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments);
/// The same with the tables of a graph that many plans share.
Program lower(const Plan& plan, SegmentLowering& lowering, const std::vector<Segment>& segments);

}  // namespace meshwright
