#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/micro_batch_tables.h"
#include "plan/program.h"

// Private to the lowering: one walk over one segment under one stage's roles. See lower.h.

namespace meshwright {

using Consumers = std::vector<std::vector<std::pair<int, int>>>;  // per value: (operator, operand)

// One operator under a stage's roles, with everything the walks below ask for.
struct LoweredOp {
  const OpDef* def = nullptr;
  const Rule* rule = nullptr;
  Strategy strategy;
  std::vector<TensorType> inputs, outputs;  // Local.
  Work work;
  Saved saved;
};

class SegmentLowerer {
 public:
  SegmentLowerer(const Graph& graph, const Consumers& consumers, MicroBatchTables& tables,
                 const Stage& stage, const Training& training, std::int64_t samples)
      : graph_(graph),
        tables_(tables),
        consumers_(consumers),
        stage_(stage),
        training_(training),
        samples_(samples) {}

  SegmentProgram run(const Segment& segment);
  Bytes resting_bytes(ValueId id) { return bytes_of(id, resting(id)); }

 private:
  const LoweredOp& lowered(int op);
  const TensorType& micro_type(ValueId id) { return tables_.type(id, samples_); }
  Sharding resting(ValueId id);
  Bytes bytes_of(ValueId id, const Sharding& sharding) {
    return local_bytes(micro_type(id), sharding, stage_.mesh);
  }
  ValueId storage(ValueId id);

  void emit_reshard(std::vector<Instr>& out, const TensorType& type, const Sharding& from,
                    const Sharding& to, int op);
  void emit_compute(std::vector<Instr>& out, const LoweredOp& op, int index, Purpose purpose);
  void emit_ring(std::vector<Instr>& out, int op, double factor);
  Purpose communication_purpose(const AxisList& axes, int op) const;

  void forward_op(int op);
  void backward_op(int op);
  void return_gradient(ValueId id, int op);
  // Whether an operator computes the same for every sample (a relative position bias): its gradient
  // may stay a partial sum over the replicas, since the parameters it came from are summed over
  // them anyway.
  bool of_parameters_only(OpId op) const {
    const auto& inputs = graph_.op(op).inputs;
    return std::none_of(inputs.begin(), inputs.end(), [&](ValueId id) {
      const ValueKind kind = graph_.value(id).kind;
      return kind == ValueKind::kActivation || kind == ValueKind::kInput;
    });
  }
  std::uint32_t replica_axes() const {
    return stage_.roles.data.mask() | stage_.roles.context.mask();
  }
  void keep(ValueId id, Bytes wanted);
  void accumulate();
  void shard_state();
  void recompute(const Segment& segment);

  const Graph& graph_;
  MicroBatchTables& tables_;
  const Consumers& consumers_;
  const Stage& stage_;
  const Training& training_;
  const std::int64_t samples_;
  std::unordered_map<int, LoweredOp> ops_;
  // Forms a value has taken in the current direction besides its resting one.
  std::unordered_map<std::int32_t, std::vector<Sharding>> forms_;
  std::unordered_map<std::int32_t, std::vector<Sharding>> gradients_;
  std::unordered_map<std::int32_t, double> kept_;  // storage -> bytes saved
  double kept_extra_ = 0;
  double attention_extra_ = 0;
  Segment segment_;
  SegmentProgram program_;
};

}  // namespace meshwright
