#pragma once

#include <string>

#include "mesh/comm_mesh.h"
#include "plan/micro_batch_tables.h"
#include "plan/program.h"

namespace meshwright {

/// Names what an instruction makes a device do, whatever model, operator or layer it is of: two
/// instructions of one signature take equally long on one kind of device.
class Signer {
 public:
  explicit Signer(const Graph& graph) : graph_(graph), tables_(graph) {}

  /// The work of one device on its own operands: "linear(bias=true) backward
  /// f32[8,256,512] - f32[512,512] -> f32[8,256,512] -": kind and attributes of the operator, the
  /// pass, then the buffers read and written as the mesh's first device holds them ("-" = not
  /// needed). Empty: nothing is done (frees), or it is no work of one device on operands of its
  /// own (collectives, the optimizer).
  std::string of(const Instr& instr, const SegmentProgram& program, const Mesh& mesh,
                 std::int64_t samples);
  /// How many messages a collective takes one after another: more than one where an operator makes
  /// several sums by itself.
  int messages(const Instr& instr) const;

 private:
  const Graph& graph_;
  MicroBatchTables tables_;
};

/// "all_reduce of 4: 2 x 2 host (eth, 1/2)": the kind of communication, the size of its group, and
/// per level of the network that it crosses, outermost last: members below an uplink x uplinks, the
/// level, what it is made of, the part of an uplink that one group has. A broadcast stands for a
/// message from one device to another ("send").
std::string communication_signature(CollectiveKind kind, const CommMesh& comm);

/// "optimizer adamw".
std::string optimizer_signature(std::string_view optimizer);

/// A buffer of a step: the segment's own, or one that the stage appended.
const Buffer& step_buffer(const StageProgram& stage, const std::vector<SegmentProgram>& segments,
                          const StageProgram::Operand& operand);
/// How many parameters an operand of a step stands for.
int step_copies(const StageProgram& stage, const std::vector<SegmentProgram>& segments,
                const StageProgram::Operand& operand);
/// How many parameters the optimizer updates one by one, into Instr::messages.
void count_updates(StageProgram& stage, const std::vector<SegmentProgram>& segments);

}  // namespace meshwright
