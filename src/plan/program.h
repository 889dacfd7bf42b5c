#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/sharding.h"
#include "ops/op_def.h"
#include "plan/plan.h"

namespace meshwright {

enum class InstrKind : std::uint8_t {
  kCompute,     ///< One operator's kernels.
  kCollective,  ///< Communication over `group`.
  kOptimizer,   ///< The optimizer step on the local shard of `bytes` parameters' elements.
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
  Bytes bytes;  ///< Collective: see CollectiveKind. Optimizer: bytes of state read and written.
  OpId op;
  Flops flops;  ///< Compute.
  Bytes traffic;
  Bytes pointwise;  ///< Traffic of memory-bound kernels besides the main one.
  int kernels = 0;
  KernelClass kernel = KernelClass::kMemory;
  MatmulShape matmul;
  DType dtype = DType::kBf16;
};

/// A parameter as one device holds it.
struct ParameterShard {
  ValueId value;
  double elements = 0;       ///< Of the largest shard, before state sharding.
  std::uint32_t reduce = 0;  ///< Axes along which its gradient is partial.
  bool grouped = false;      ///< Belongs to a grouped (expert) operator.
  bool shared = false;       ///< Used by several segments (tied embeddings): held once per stage.
};

/// One segment on one stage: what one device runs per micro-batch.
struct SegmentProgram {
  std::vector<Instr> forward;
  std::vector<Instr> backward;  ///< Includes recomputation.
  std::vector<ParameterShard> parameters;
  Bytes saved;     ///< Kept from forward to backward, per micro-batch in flight.
  Bytes gathered;  ///< More to save per micro-batch where an engine keeps gathered operands.
  Bytes loss;      ///< The loss's logits in its own precision (fp32), of which `saved` holds one
                   ///< copy; how many more are live at its peak depends on the engine.
  Bytes forward_peak;   ///< Live besides what is saved, at its largest.
  Bytes backward_peak;  ///< Gradients and recomputed values live at their largest.
};

enum class Phase : std::uint8_t { kForward, kBackward };

struct ScheduleItem {
  Phase phase = Phase::kForward;
  int chunk = 0;  ///< Index into Plan::chunks.
  int micro_batch = 0;
  friend bool operator==(const ScheduleItem&, const ScheduleItem&) = default;
};

/// One SPMD instruction list per stage. Items of `order` stand for the instructions of their
/// chunk's segments, between a receive from and a send to the neighbouring chunk; `step` runs once
/// at the end.
struct StageProgram {
  std::vector<ScheduleItem> order;
  std::vector<Instr> step;  ///< Gradient reduction, optimizer, parameter gathers.
};

struct ChunkProgram {
  int stage = 0;
  std::vector<int>
      segments;  ///< Indices into Program::segments, in order; equal segments share one.
  Bytes send;    ///< Activation bytes per micro-batch that cross to the next chunk.
};

struct Program {
  std::vector<SegmentProgram> segments;  ///< Distinct ones.
  std::vector<ChunkProgram> chunks;
  std::vector<StageProgram> stages;
  std::int64_t micro_batches = 1;
};

}  // namespace meshwright
