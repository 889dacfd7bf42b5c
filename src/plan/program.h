#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/sharding.h"
#include "ops/op_def.h"
#include "plan/plan.h"

namespace meshwright {

/// What an instruction does. `in` and `out` are the buffers it reads and writes, in order (see
/// operands_of); -1 stands for an operand that is not needed.
enum class InstrKind : std::uint8_t {
  /// One operator's kernels. Forward (and recompute): in = operands, out = results. Backward: in =
  /// gradients of the results, then the operands, then the results that the operator saves (others
  /// -1); out = gradients of the operands (-1 = not due). Weight: like backward, for parameters
  /// only (zero-bubble schedules keep the two apart).
  kCompute,
  /// Communication over `group`, each in[i] becoming out[i]. What a device ends up with is what
  /// out[i]'s form says.
  kCollective,
  /// The optimizer step: in = accumulated gradients, out = parameters at rest. `bytes` of state are
  /// read and written.
  kOptimizer,
  /// out[i] += in[i] over the micro-batches of a step.
  kAccumulate,
  /// A part of in[i] becomes out[i] on the same device. Free of charge.
  kSlice,
  /// out[0] = in[0] + in[1] + …; fused into the kernels around it, free of charge.
  kAdd,
  /// The buffers of `in` are no longer needed.
  kFree,
};
std::string_view instr_kind_name(InstrKind kind);

enum class BufferKind : std::uint8_t {
  kValue,        ///< A value of the graph (of one micro-batch, unless a parameter).
  kGradient,     ///< The gradient of a value, for one micro-batch.
  kAccumulated,  ///< The gradient of a parameter, summed over the micro-batches so far.
};

/// What every device of a stage holds of one tensor: which part follows from the device's
/// coordinates.
struct Buffer {
  ValueId value;  ///< Of the segment that stands for its class.
  BufferKind kind = BufferKind::kValue;
  Sharding form;
  /// State sharding: of the part that `form` gives, flattened, the device holds one of
  /// size(flat) equal pieces.
  AxisList flat;
  Halo halo = {};  ///< Held besides `form`'s part. Of a gradient: what is due to neighbours.

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// Why an instruction exists; the categories of every report.
enum class Purpose : std::uint8_t {
  kForward,          ///< Forward compute.
  kBackward,         ///< Backward compute.
  kRecompute,        ///< Forward compute run again.
  kTensor,           ///< Tensor and sequence parallel communication.
  kContext,          ///< Context parallel communication.
  kExpert,           ///< Expert all_to_all and its relatives.
  kParameterGather,  ///< Sharded parameters gathered (FSDP, ZeRO).
  kGradient,         ///< Gradient reduction.
  kPipeline,         ///< Stage to stage.
  kOptimizer,        ///< Optimizer step.
};
inline constexpr int kPurposeCount = 10;
std::string_view purpose_name(Purpose purpose);

struct Instr {
  InstrKind kind = InstrKind::kCompute;
  Purpose purpose = Purpose::kForward;
  CollectiveKind collective = CollectiveKind::kAllReduce;
  bool overlapped =
      false;  ///< Runs on the communication stream beside the compute that follows it. A gather of
              ///< parameters is waited for by its own segment and issued one segment ahead.
  bool regather = false;  ///< Brings back what the forward pass gathered already: not needed where
                          ///< an engine keeps it.
  AxisList group;
  int peer_offset = 0;  ///< Not 0: instead of a group, exchange with the device this far away.
  int tie = -1;         ///< Then: index into Program::ties of what is summed.
  Bytes bytes;  ///< Collective: see CollectiveKind. Optimizer: bytes of state read and written.
  OpId op;
  Flops flops;  ///< Compute.
  Bytes traffic;
  Bytes pointwise;  ///< Traffic of memory-bound kernels besides the main one.
  int kernels = 0;
  KernelClass kernel = KernelClass::kMemory;
  MatmulShape matmul;
  DType dtype = DType::kBf16;
  Seconds measured = Seconds(-1);  ///< What a profile says that it takes; negative = not measured.
  int messages = 1;                ///< What it does one by one, where a profile tells it apart.
  /// Range of the list of operands that the instruction belongs to: `in_count` buffers read, then
  /// `out_count` written.
  std::uint32_t operands = 0;
  std::uint32_t in_count = 0;
  std::uint32_t out_count = 0;
};

/// A parameter as one device holds it.
struct ParameterShard {
  ValueId value;
  double elements = 0;       ///< Of the largest shard, before state sharding.
  std::uint32_t reduce = 0;  ///< Axes along which its gradient is partial.
  bool grouped = false;      ///< Belongs to a grouped (expert) operator.
  bool shared = false;       ///< Used by several segments (tied embeddings): held once per stage.
  std::int32_t buffer = -1;  ///< At rest, as SegmentProgram::buffers has it.
  std::int32_t accumulated = -1;  ///< Its gradient, summed over micro-batches; -1 = it has none.
};

/// How state sharding cuts a parameter's shard: along the axes of the stage's state over which its
/// gradient is summed, then along those where it is the same anyway. Empty without state sharding.
AxisList state_shard_axes(const Stage& stage, const ParameterShard& parameter);

/// One segment on one stage: what one device runs per micro-batch. Equal segments share it: the
/// i-th operator of each takes the place of the i-th operator of `segment`.
struct SegmentProgram {
  int segment = 0;  ///< The one that stands for its class.
  std::vector<Instr> forward;
  std::vector<Instr> backward;  ///< Includes recomputation.
  std::vector<Instr> weight;    ///< Gradients of parameters, where a schedule splits them off.

  std::vector<Buffer> buffers;
  std::vector<std::int32_t> operands;  ///< Indices into `buffers`; see Instr::operands.
  /// Buffers that are there when the forward pass starts: activations from earlier segments, and
  /// parameters at rest. (Inputs and constants of the graph are there in any form.)
  std::vector<std::int32_t> arguments;
  /// Buffers that the forward pass leaves for later segments.
  std::vector<std::int32_t> results;
  /// Gradients that are there when the backward pass starts: of the values of `results` that have
  /// one, summed over later segments.
  std::vector<std::int32_t> gradient_arguments;
  /// Gradients of the values of `arguments` that the backward pass leaves, to be added to those of
  /// other segments.
  std::vector<std::int32_t> gradient_results;

  std::span<const std::int32_t> in(const Instr& i) const {
    return std::span(operands).subspan(i.operands, i.in_count);
  }
  std::span<const std::int32_t> out(const Instr& i) const {
    return std::span(operands).subspan(i.operands + i.in_count, i.out_count);
  }

  std::vector<ParameterShard> parameters;
  Bytes saved;     ///< Kept from forward to backward, per micro-batch in flight.
  Bytes gathered;  ///< More to save per micro-batch where an engine keeps gathered operands.
  Bytes loss;      ///< The loss's logits in its own precision (fp32), of which `saved` holds one
                   ///< copy; how many more are live at its peak depends on the engine.
  Bytes forward_peak;   ///< Live besides what is saved, at its largest.
  Bytes backward_peak;  ///< Gradients and recomputed values live at their largest.
};

struct ScheduleItem {
  Phase phase = Phase::kForward;
  int chunk = 0;  ///< Passes: index into Plan::chunks. Otherwise: into Program::transfers.
  int micro_batch = 0;
  friend bool operator==(const ScheduleItem&, const ScheduleItem&) = default;
};

/// Devices that run one order. Where meshes of stages do not overlap, lane i is stage i; where they
/// do (an embedding over all devices, blocks on parts of them), the passes of a stage stand in the
/// order of every lane that it covers, and start when all of them have come to it.
struct Lane {
  std::vector<int> stages;  ///< That these devices belong to.
  Mesh mesh;                ///< The devices: the mesh of the smallest of these stages.
  /// Passes stand for the instructions of their chunk's segments.
  std::vector<ScheduleItem> order;
};

/// What the devices of a stage run once at the end of a step, SPMD.
struct StageProgram {
  std::vector<Instr> step;  ///< Gradient reduction, optimizer, parameter gathers.
  /// What the step's instructions work on; Instr::operands points into `operands`.
  struct Operand {
    int segment = 0;  ///< Index into Program::segments: every copy that the stage holds.
    int buffer = 0;
    friend bool operator==(const Operand&, const Operand&) = default;
  };
  std::vector<Operand> operands;
  /// Buffers of the step that segments lack (reduced gradients, optimizer shards), appended to the
  /// segment's own: StageProgram::Operand::buffer >= buffers.size() of the segment counts on here.
  std::map<int, std::vector<Buffer>> buffers;
  /// Per index into Program::segments and parameter of that segment: how many different parameters
  /// the stage holds in its place, those that an earlier segment holds too left out. What the
  /// step's operands stand for, each parameter once.
  std::map<int, std::vector<int>> copies;

  std::span<const Operand> in(const Instr& i) const {
    return std::span(operands).subspan(i.operands, i.in_count);
  }
  std::span<const Operand> out(const Instr& i) const {
    return std::span(operands).subspan(i.operands + i.in_count, i.out_count);
  }
};

struct ChunkProgram {
  int stage = 0;
  int first_segment = 0;  ///< In the plan's list of segments.
  std::vector<int>
      segments;          ///< Indices into Program::segments, in order; equal segments share one.
  bool backward = true;  ///< Whether any gradient flows through it.
};

/// Values that go from one chunk to another on other devices, per micro-batch; their gradients
/// come back through a transfer of their own.
struct Transfer {
  int from_chunk = 0;
  int to_chunk = 0;
  bool gradient = false;
  struct Item {
    ValueId value;
    Sharding from, to;  ///< On the sending and the receiving stage's mesh.
    friend bool operator==(const Item&, const Item&) = default;
  };
  std::vector<Item> items;
  /// Every device sends what it holds to the device at its own coordinates: the forms agree.
  /// Otherwise the general way (mesh/exchange.h): every receiver takes pieces from the least
  /// loaded senders that hold them.
  bool aligned = true;
  Bytes bytes;  ///< The most that one device sends or receives.
};

/// Parameters that several stages hold (tied embeddings, the two copies of a bidirectional
/// pipeline): devices at equal coordinates sum their gradients.
struct Tie {
  std::vector<int> stages;
  std::vector<ValueId> values;
};

struct Program {
  std::vector<SegmentProgram> segments;  ///< Distinct ones.
  std::vector<ChunkProgram> chunks;
  std::vector<StageProgram> stages;
  std::vector<Lane> lanes;
  std::vector<Transfer> transfers;
  std::vector<Tie> ties;
  std::int64_t micro_batches = 1;
};

}  // namespace meshwright
