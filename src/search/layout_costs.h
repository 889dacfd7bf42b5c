#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cost/memory.h"
#include "plan/lower.h"
#include "search/problem.h"

namespace meshwright {

/// What a search needs to know of one class of segments under one layout, priced once.
struct ClassCost {
  SegmentProgram program;      ///< Without its instructions.
  Seconds serial[2];           ///< Forward, backward: what the compute stream does or waits for.
  Seconds traffic[2];          ///< Forward, backward: sharded state on the communication stream.
  Seconds without_overlap[2];  ///< Forward, backward: all instructions one after another.
  Seconds time;                ///< Forward and backward of one micro-batch, alone on its stage.
  double fixed_memory = 0;     ///< Parameters, gradients, optimizer state of one copy, bytes.
  double saved = 0;            ///< Activations per micro-batch in flight, bytes.
  double transient = 0;        ///< At its peak besides, bytes.
  double gathered = 0;         ///< Its parameters whole while it is at work (ZeRO-3), bytes.
};

/// All classes under one layout: everything about degrees that does not depend on how the pipeline
/// is cut.
struct LayoutCosts {
  Stage stage;                     ///< Of the first stage.
  std::vector<ClassCost> classes;  ///< By Segment::shape_class.
  std::vector<Bytes> boundary;     ///< By SegmentLowering::boundary_class: bytes sent on.
};

/// Lowers and prices every class of segments once per layout.
class LayoutCostTable {
 public:
  LayoutCostTable(const Problem& problem, const ModelFacts& facts, Pricer& pricer);

  /// Costs under these degrees; pp, vpp, global batch and (without sharded state or experts) dp do
  /// not matter and are not part of the key.
  const LayoutCosts& costs(const Degrees& degrees);

  const SegmentLowering& lowering() const { return lowering_; }

 private:
  const Problem& problem_;
  const ModelFacts& facts_;
  Pricer& pricer_;
  SegmentLowering lowering_;
  std::vector<int> representative_;  // Segment of each class.
  std::vector<int> boundary_representative_;
  std::map<std::vector<std::int64_t>, std::unique_ptr<LayoutCosts>> table_;
};

}  // namespace meshwright
