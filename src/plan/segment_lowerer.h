#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/graph_tables.h"
#include "plan/micro_batch_tables.h"
#include "plan/program.h"

// Private to the lowering: one walk over one segment under one stage's roles. See lower.h.

namespace meshwright {

// One operator under a stage's roles, with everything the walks below ask for.
struct LoweredOp {
  const OpDef* def = nullptr;
  const Rule* rule = nullptr;
  Strategy strategy;
  std::vector<TensorType> inputs, outputs;  // Local.
  std::vector<Sharding> in, out;            // As the strategy implies.
  std::vector<Halo> halo;                   // Per operand; empty = none has one.
  Work work;
  Saved saved;
};

class SegmentLowerer {
 public:
  SegmentLowerer(const GraphTables& tables, MicroBatchTables& types, const Stage& stage,
                 const Training& training, std::int64_t samples, bool split_backward = false)
      : t_(tables),
        graph_(tables.graph),
        types_(types),
        stage_(stage),
        training_(training),
        samples_(samples),
        split_backward_(split_backward) {}

  SegmentProgram run(int segment);

  // How a value lies between operators, and its gradient.
  Sharding resting(ValueId id);
  Sharding gradient_resting(ValueId id);
  Bytes resting_bytes(ValueId id) { return bytes_of(id, resting(id)); }
  // The part of a parameter's gradient that is still due when a backward pass has ended.
  std::uint32_t parameter_partial(ValueId id);

 private:
  using Instrs = std::vector<Instr>;
  // A value in one of the forms it has taken.
  struct Form {
    Sharding sharding;
    int buffer = -1;
  };
  using Forms = std::unordered_map<std::int32_t, std::vector<Form>>;

  const LoweredOp& lowered(int op);
  const Op& op_at(int op) const { return graph_.ops[static_cast<std::size_t>(op)]; }
  const TensorType& micro_type(ValueId id) { return types_.type(id, samples_); }
  Bytes bytes_of(ValueId id, const Sharding& sharding) {
    return local_bytes(micro_type(id), sharding, stage_.mesh);
  }
  ValueId storage(ValueId id);
  const Sharding& wanted(int op, std::size_t operand) { return lowered(op).in[operand]; }
  Sharding gathered_keys(const LoweredOp& op, std::size_t operand, const Sharding& form) const;
  bool has_gradient(ValueId id) const { return t_.has_gradient[id.index()]; }
  bool has_backward(int op) const {
    const auto& outputs = op_at(op).outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](ValueId id) { return has_gradient(id); });
  }
  // Partial sums that the gradients of an operator's results may still have (gradient_resting).
  std::uint32_t inherited_partial(int op);
  Sharding operand_gradient(int op, std::size_t operand);

  int new_buffer(ValueId id, BufferKind kind, const Sharding& form, const AxisList& flat = {});
  void attach(Instr& instr, std::span<const std::int32_t> in, std::span<const std::int32_t> out);
  void emit_local(Instrs& out, InstrKind kind, std::vector<std::int32_t> in,
                  std::vector<std::int32_t> result, int op);
  int emit_reshard(Instrs& out, int buffer, const Sharding& to, int op);
  void emit_compute(Instrs& out, const LoweredOp& op, int index, Purpose purpose,
                    std::vector<std::int32_t> in, std::vector<std::int32_t> results);
  void emit_own_sums(Instrs& out, const LoweredOp& l, int index, Purpose purpose);
  std::vector<std::int32_t> emit_ring(Instrs& out, int op, std::vector<std::int32_t> operands);
  Instr ring(int op);
  void find_halos(LoweredOp& op, int index, std::span<const TensorType> inputs,
                  std::span<const TensorType> outputs);
  int emit_halo(Instrs& out, int op, std::size_t operand, int buffer, bool back);
  Purpose communication_purpose(const AxisList& axes, int op) const;
  int operand(Instrs& out, int op, std::size_t k);

  void forward_op(int op);
  void note_parameter(int op, std::size_t k);
  void backward_op(int op);
  int saved_operand(int op, std::size_t k);
  void return_gradient(ValueId id, int op);
  void return_parameter_gradients();
  void keep(ValueId id, Bytes wanted);
  void accumulate();
  void gather_state();
  void scatter_gradients(Instrs& out);
  void recompute();
  // The part of a co-sharded region that an operator belongs to, counted along the segment; -1 =
  // none.
  int part_of(int op) const { return parts_.empty() ? -1 : parts_[part_index(op)]; }
  std::size_t part_index(int op) const { return static_cast<std::size_t>(op - segment_.first_op); }
  void find_parts();
  void recompute_part(int last_op);
  std::int32_t twin(std::int32_t b) const {
    const auto i = static_cast<std::size_t>(b);
    return b >= 0 && i < remap_.size() ? remap_[i] : b;
  }
  void free_buffers();
  void insert_frees(Instrs& list, std::vector<char>& keep);

  const GraphTables& t_;
  const Graph& graph_;
  MicroBatchTables& types_;
  const Stage& stage_;
  const Training& training_;
  const std::int64_t samples_;
  const bool split_backward_;
  std::unordered_map<int, LoweredOp> ops_;
  std::unordered_map<std::int32_t, Sharding> gradient_resting_;
  Forms forms_;          // Of values, in the current direction; the resting form first.
  Forms regathered_;     // Of values, brought back for the backward pass.
  Forms contributions_;  // Gradients of a value from the consumers seen so far.
  std::map<std::pair<int, std::size_t>, int> with_halo_;  // (operator, operand) -> buffer.
  std::unordered_map<std::int32_t, int> produced_;        // Buffer in which a result was computed.
  std::unordered_map<std::int32_t, int> gradient_;        // Buffer of a value's whole gradient.
  std::vector<std::pair<ValueId, int>> parameter_gradients_;
  std::unordered_map<std::int32_t, double> kept_;  // storage -> bytes saved
  std::vector<std::int32_t> remap_;  // Forward buffers to their recomputed twins; empty = none.
  double kept_extra_ = 0;
  double attention_extra_ = 0;
  // Scratch of insert_frees.
  std::vector<std::int32_t> last_use_, dying_at_, dying_;
  std::vector<char> written_;
  int index_ = 0;
  Recompute recompute_ = Recompute::kNone;
  std::vector<int> parts_;                // Under kParts: per operator of the segment.
  std::vector<std::size_t> first_instr_;  // Of each operator in the forward list.
  std::vector<double> part_saved_;        // Per part: bytes that it needs while it runs backward.
  Bytes inbound_;                         // Kept under full recomputation.
  Segment segment_;
  SegmentProgram program_;
};

}  // namespace meshwright
