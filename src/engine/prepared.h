#pragma once

#include <map>
#include <vector>

#include "plan/lower.h"
#include "run/device_view.h"

// Private to the executor: a segment's lists made ready for one device.

namespace meshwright {

struct PreparedInstr {
  const Instr* instr = nullptr;
  // Compute.
  Kernel kernel;                    ///< Of the forward computation.
  std::vector<DType> result_types;  ///< Declared.
  bool adjoint = false;             ///< The instruction is of the backward pass.
  bool keep = false;       ///< Forward: what autograd recorded serves the backward instructions.
  bool rerun = false;      ///< Adjoint: no record serves; the forward computation is run again.
  bool last = false;       ///< Adjoint: the operator's last; its record can go.
  bool direct = false;     ///< Adjoint: `kernel` is the operator's backward kernel.
  std::vector<int> group;  ///< Ranks that share the summed factors; one = none.
  /// Adjoint: the forward instruction's operands, for the shapes of those that are not given.
  std::vector<std::int32_t> forward_in;
  // Collective: one per operand.
  std::vector<LocalCollective> collectives;
};

enum ListKind { kForwardList, kBackwardList, kWeightList };

struct PreparedSegment {
  const SegmentProgram* program = nullptr;
  std::vector<LocalBuffer> buffers;
  std::vector<DType> types;  ///< Per buffer: its value's.
  std::vector<PreparedInstr> lists[3];
};

/// Throws Error when an operator cannot be run, naming it.
PreparedSegment prepare_segment(const SegmentProgram& program, const Graph& graph,
                                MicroBatchTables& tables, std::int64_t samples, const Mesh& mesh,
                                std::span<const int> coordinates);

}  // namespace meshwright
