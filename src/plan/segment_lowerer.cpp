#include "plan/segment_lowerer.h"

#include "base/error.h"

namespace meshwright {

std::string_view purpose_name(Purpose purpose) {
  constexpr std::string_view kNames[] = {"forward",  "backward", "recompute",    "tensor",
                                         "context",  "expert",   "param gather", "gradient",
                                         "pipeline", "optimizer"};
  return kNames[static_cast<std::size_t>(purpose)];
}

std::string_view instr_kind_name(InstrKind kind) {
  constexpr std::string_view kNames[] = {"compute", "collective", "optimizer", "accumulate",
                                         "slice",   "add",        "free"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view phase_name(Phase phase) {
  constexpr std::string_view kNames[] = {"forward",   "backward", "weight",      "send",
                                         "send wait", "receive",  "receive wait"};
  return kNames[static_cast<std::size_t>(phase)];
}

const LoweredOp& SegmentLowerer::lowered(int index) {
  const auto it = ops_.find(index);
  if (it != ops_.end()) return it->second;
  const Op& op = graph_.ops[static_cast<std::size_t>(index)];
  LoweredOp l;
  l.def = &find_op(op.kind);
  std::vector<TensorType> types;
  types.reserve(op.inputs.size());
  for (ValueId id : op.inputs) types.push_back(micro_type(id));
  l.rule = &tables_.rule(index, *l.def, samples_);
  l.strategy = strategy_for(*l.rule, types, stage_.roles, stage_.mesh);
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    l.inputs.push_back(local_type(types[k], input_sharding(*l.rule, l.strategy, k), stage_.mesh));
  }
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    l.outputs.push_back(local_type(micro_type(op.outputs[k]),
                                   output_sharding(*l.rule, l.strategy, k), stage_.mesh));
  }
  const OpContext context{op.attrs, l.inputs, l.outputs};
  l.work = work_of(*l.def, context);
  l.saved = saved_of(*l.def, context);
  if (l.strategy.ring) {
    // Queries stay, keys of all devices pass by: one round per device of the ring.
    const double rounds = stage_.mesh.size(stage_.roles.context);
    l.work.forward_flops *= rounds;
    l.work.backward_input_flops *= rounds;
    l.work.forward_traffic *= rounds;
    l.work.backward_traffic *= rounds;
    l.work.forward_pointwise *= rounds;
    l.work.backward_pointwise *= rounds;
    l.work.forward_kernels *= static_cast<int>(rounds);
    l.work.backward_kernels *= static_cast<int>(rounds);
    if (attr_string(op.attrs, "kernel", "flash") == "unfused") l.saved.extra *= rounds;
  }
  return ops_.emplace(index, std::move(l)).first->second;
}

// How a value lies between operators: as computed, with sums resolved at once into what the first
// consumer wants (a partial sum never outlives its producer).
Sharding SegmentLowerer::resting(ValueId id) {
  const Value& value = graph_.value(id);
  const auto& uses = consumers_[id.index()];
  const auto wanted_by_first = [&] {
    const LoweredOp& user = lowered(uses[0].first);
    return input_sharding(*user.rule, user.strategy, static_cast<std::size_t>(uses[0].second));
  };
  if (!value.producer.valid()) return uses.empty() ? Sharding{} : wanted_by_first();
  const Op& op = graph_.op(value.producer);
  const auto position = static_cast<std::size_t>(
      std::find(op.outputs.begin(), op.outputs.end(), id) - op.outputs.begin());
  const LoweredOp& producer = lowered(value.producer.value);
  const Sharding produced = output_sharding(*producer.rule, producer.strategy, position);
  if (produced.partial == 0) return produced;
  return uses.empty() ? produced.resolved() : wanted_by_first();
}

// Views share their operand's memory.
ValueId SegmentLowerer::storage(ValueId id) {
  for (;;) {
    const Value& value = graph_.value(id);
    if (!value.producer.valid()) return id;
    const Op& op = graph_.op(value.producer);
    if (op.inputs.empty() || !lowered(value.producer.value).def->view) return id;
    id = op.inputs[0];
  }
}

Purpose SegmentLowerer::communication_purpose(const AxisList& axes, int op) const {
  const std::string& kind = graph_.ops[static_cast<std::size_t>(op)].kind;
  if (kind.starts_with("moe_") || kind.starts_with("grouped")) return Purpose::kExpert;
  const std::uint32_t mask = axes.mask();
  if ((mask & stage_.roles.tensor.mask()) != 0) return Purpose::kTensor;
  if ((mask & stage_.roles.context.mask()) != 0) return Purpose::kContext;
  return Purpose::kTensor;
}

void SegmentLowerer::emit_reshard(std::vector<Instr>& out, const TensorType& type,
                                  const Sharding& from, const Sharding& to, int op) {
  for (const ReshardStep& step : reshard(type, from, to, stage_.mesh)) {
    Instr instr;
    instr.kind = InstrKind::kCollective;
    instr.collective = step.kind;
    instr.group = step.axes;
    instr.bytes = step.bytes;
    instr.op = OpId(op);
    instr.purpose = communication_purpose(step.axes, op);
    out.push_back(instr);
  }
}

void SegmentLowerer::emit_compute(std::vector<Instr>& out, const LoweredOp& l, int index,
                                  Purpose purpose) {
  if (l.work.kernel == KernelClass::kView) return;
  const bool forward = purpose != Purpose::kBackward;
  Instr instr;
  instr.purpose = purpose;
  instr.op = OpId(index);
  instr.flops =
      forward ? l.work.forward_flops : l.work.backward_input_flops + l.work.backward_weight_flops;
  instr.traffic = forward ? l.work.forward_traffic : l.work.backward_traffic;
  instr.pointwise = forward ? l.work.forward_pointwise : l.work.backward_pointwise;
  instr.kernels = forward ? l.work.forward_kernels : l.work.backward_kernels;
  instr.kernel = l.work.kernel;
  instr.matmul = l.work.matmul;
  instr.dtype = training_.dtype;
  out.push_back(instr);
}

// Ring attention (Liu et al. 2023): keys and values of every other device pass by; their gradients
// too on the way back.
void SegmentLowerer::emit_ring(std::vector<Instr>& out, int index, double factor) {
  const LoweredOp& l = lowered(index);
  if (!l.strategy.ring) return;
  double bytes = 0;
  for (std::size_t k = 1; k < std::min<std::size_t>(3, l.inputs.size()); ++k) {
    bytes += l.inputs[k].bytes().value;
  }
  Instr instr;
  instr.kind = InstrKind::kCollective;
  instr.collective = CollectiveKind::kRing;
  instr.purpose = Purpose::kContext;
  instr.group = stage_.roles.context;
  instr.bytes = Bytes(bytes * factor * (stage_.mesh.size(stage_.roles.context) - 1));
  instr.op = OpId(index);
  instr.overlapped = true;
  out.push_back(instr);
}

void SegmentLowerer::keep(ValueId id, Bytes wanted) {
  const ValueId root = storage(id);
  const Value& value = graph_.value(root);
  if (value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer) return;
  const double bytes = std::min(wanted.value, bytes_of(id, resting(id)).value);
  const auto [it, fresh] = kept_.try_emplace(root.value, bytes);
  if (!fresh) it->second = std::min(it->second, bytes);
}

void SegmentLowerer::forward_op(int index) {
  const Op& op = graph_.ops[static_cast<std::size_t>(index)];
  const LoweredOp& l = lowered(index);
  const bool loss = op.kind == "cross_entropy";
  double live = loss ? 0 : l.saved.extra.value;
  if (loss) program_.loss += l.saved.extra;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const ValueId id = op.inputs[k];
    const Value& value = graph_.value(id);
    const Sharding wanted = input_sharding(*l.rule, l.strategy, k);
    if (value.kind == ValueKind::kActivation) {
      std::vector<Sharding>& forms = forms_[id.value];
      if (forms.empty()) forms.push_back(resting(id));
      if (std::find(forms.begin(), forms.end(), wanted) == forms.end()) {
        emit_reshard(program_.forward, micro_type(id), forms[0], wanted, index);
        forms.push_back(wanted);
      }
    } else if (value.kind == ValueKind::kParameter) {
      std::uint32_t reduce = input_gradient_sharding(*l.rule, l.strategy, k).partial;
      if (of_parameters_only(OpId(index))) reduce |= replica_axes();
      const auto& uses = consumers_[id.index()];
      const bool shared =
          uses.front().first < segment_.first_op || uses.back().first >= segment_.last_op;
      const auto found = std::find_if(program_.parameters.begin(), program_.parameters.end(),
                                      [&](const ParameterShard& p) { return p.value == id; });
      if (found == program_.parameters.end()) {
        program_.parameters.push_back(
            {id, l.inputs[k].elements(), reduce, op.kind.starts_with("grouped"), shared});
      } else {
        found->reduce |= reduce;
      }
    }
  }
  emit_ring(program_.forward, index, 1);
  emit_compute(program_.forward, l, index, Purpose::kForward);
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const Sharding produced = output_sharding(*l.rule, l.strategy, k);
    if (produced.partial != 0) {
      emit_reshard(program_.forward, micro_type(op.outputs[k]), produced, resting(op.outputs[k]),
                   index);
    }
    live += l.outputs[k].bytes().value;
  }
  for (int k : l.saved.inputs) {
    const auto i = static_cast<std::size_t>(k);
    keep(op.inputs[i], l.inputs[i].bytes());
  }
  for (int k : l.saved.outputs) {
    const auto i = static_cast<std::size_t>(k);
    keep(op.outputs[i], l.outputs[i].bytes());
  }
  kept_extra_ += l.saved.extra.value;
  if (op.kind == "attention") attention_extra_ += l.saved.extra.value;
  program_.forward_peak = std::max(program_.forward_peak, Bytes(live));
}

// All consumers of a value have added their gradients: bring the sum to the value's resting form.
// Gradients that lie alike are added locally and travel once.
void SegmentLowerer::return_gradient(ValueId id, int op) {
  const auto it = gradients_.find(id.value);
  if (it == gradients_.end()) return;
  const Sharding target = resting(id).resolved();
  for (Sharding form : it->second) {
    if (of_parameters_only(graph_.value(id).producer)) form.partial &= ~replica_axes();
    emit_reshard(program_.backward, micro_type(id), form, target, op);
  }
  gradients_.erase(it);
}

void SegmentLowerer::backward_op(int index) {
  const Op& op = graph_.ops[static_cast<std::size_t>(index)];
  const LoweredOp& l = lowered(index);
  double live = 0;
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const ValueId id = op.outputs[k];
    return_gradient(id, index);
    const Sharding produced = output_sharding(*l.rule, l.strategy, k);
    // The gradient of every part of a sum is the gradient of the whole.
    if (produced.partial != 0) {
      emit_reshard(program_.backward, micro_type(id), resting(id), produced.resolved(), index);
    }
    live += l.outputs[k].bytes().value;
  }
  // Operands kept in a smaller form (sequence-parallel shards) are gathered again, once per form.
  for (int k : l.saved.inputs) {
    const auto i = static_cast<std::size_t>(k);
    const ValueId id = op.inputs[i];
    if (graph_.value(id).kind != ValueKind::kActivation) continue;
    const Sharding wanted = input_sharding(*l.rule, l.strategy, i);
    const Sharding kept = resting(id);
    if (bytes_of(id, kept) >= bytes_of(id, wanted)) continue;
    std::vector<Sharding>& forms = forms_[id.value];
    if (std::find(forms.begin(), forms.end(), wanted) == forms.end()) {
      const std::size_t first = program_.backward.size();
      emit_reshard(program_.backward, micro_type(id), kept, wanted, index);
      for (std::size_t n = first; n < program_.backward.size(); ++n) {
        program_.backward[n].regather = true;
      }
      program_.gathered += bytes_of(id, wanted) - bytes_of(id, kept);
      forms.push_back(wanted);
    }
    live += bytes_of(id, wanted).value;
  }
  if (op.kind == "attention" && stage_.recompute == Recompute::kSelective) {
    emit_compute(program_.backward, l, index, Purpose::kRecompute);
  }
  emit_ring(program_.backward, index, 2);
  emit_compute(program_.backward, l, index, Purpose::kBackward);
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const Value& value = graph_.value(op.inputs[k]);
    if (value.kind != ValueKind::kActivation || !is_floating(value.type.dtype)) continue;
    Sharding gradient = input_gradient_sharding(*l.rule, l.strategy, k);
    if (l.strategy.ring)
      gradient.partial = 0;  // The ring brings whole gradients back to their owners.
    std::vector<Sharding>& sums = gradients_[op.inputs[k].value];
    if (std::find(sums.begin(), sums.end(), gradient) == sums.end()) sums.push_back(gradient);
    live += l.inputs[k].bytes().value;
  }
  program_.backward_peak = std::max(program_.backward_peak, Bytes(live));
}

// Every backward pass adds its gradients of parameters to those of the micro-batches before: a pass
// over the new gradients and the accumulated ones, one kernel per parameter.
void SegmentLowerer::accumulate() {
  const bool sharded =
      stage_.state == StateSharding::kZero2 || stage_.state == StateSharding::kZero3;
  Instr instr;
  instr.purpose = Purpose::kBackward;
  instr.kernel = KernelClass::kMemory;
  instr.dtype = training_.gradient_dtype;
  for (const ParameterShard& p : program_.parameters) {
    const AxisList& axes = p.grouped ? stage_.expert_state_axes : stage_.state_axes;
    const double sum = p.elements / (sharded ? stage_.mesh.size(axes) : 1);
    instr.traffic +=
        Bytes(p.elements * training_.parameter_bytes() + sum * 2.0 * training_.gradient_bytes());
    // A reduce_scatter reads a buffer into which the gradient is copied first.
    if (sharded) instr.traffic += Bytes(p.elements * training_.gradient_bytes());
    ++instr.kernels;
  }
  if (instr.kernels > 0) program_.backward.push_back(instr);
}

// FSDP / ZeRO-3 (Zhao et al. 2023): parameters are gathered before a segment's forward and backward
// pass; gradients are scattered after every backward pass (ZeRO-2 too).
void SegmentLowerer::shard_state() {
  for (const bool grouped : {false, true}) {
    const AxisList& axes = grouped ? stage_.expert_state_axes : stage_.state_axes;
    if (axes.empty() || stage_.mesh.size(axes) == 1) continue;
    double elements = 0;
    std::uint32_t reduce = 0;
    for (const ParameterShard& p : program_.parameters) {
      if (p.grouped != grouped) continue;
      elements += p.elements;
      reduce |= p.reduce;
    }
    if (elements == 0) continue;
    Instr gather;
    gather.kind = InstrKind::kCollective;
    gather.collective = CollectiveKind::kAllGather;
    gather.purpose = Purpose::kParameterGather;
    gather.overlapped = true;
    gather.group = axes;
    gather.bytes = Bytes(elements * training_.parameter_bytes());
    if (stage_.state == StateSharding::kZero3) {
      program_.forward.insert(program_.forward.begin(), gather);
      program_.backward.insert(program_.backward.begin(), gather);
    }
    Instr scatter = gather;
    scatter.collective = CollectiveKind::kReduceScatter;
    scatter.purpose = Purpose::kGradient;
    scatter.bytes = Bytes(elements * training_.gradient_bytes());
    program_.backward.push_back(scatter);
    const std::uint32_t rest = reduce & stage_.roles.data.mask() & ~axes.mask();
    if (rest != 0) {
      scatter.collective = CollectiveKind::kAllReduce;
      scatter.group = axes_of_mask(rest);
      scatter.bytes = scatter.bytes / stage_.mesh.size(axes);
      program_.backward.push_back(scatter);
    }
  }
}

// Full recomputation keeps the values that enter the segment and runs its forward pass again.
void SegmentLowerer::recompute(const Segment& segment) {
  double inbound = 0;
  std::vector<std::int32_t> seen;
  for (int i = segment.first_op; i < segment.last_op; ++i) {
    for (ValueId id : graph_.ops[static_cast<std::size_t>(i)].inputs) {
      const Value& value = graph_.value(id);
      if (value.kind != ValueKind::kActivation || value.producer.value >= segment.first_op)
        continue;
      if (std::find(seen.begin(), seen.end(), id.value) != seen.end()) continue;
      seen.push_back(id.value);
      inbound += resting_bytes(id).value;
    }
  }
  std::vector<Instr> again;
  for (const Instr& instr : program_.forward) {
    again.push_back(instr);
    if (instr.kind == InstrKind::kCompute) again.back().purpose = Purpose::kRecompute;
  }
  program_.backward.insert(program_.backward.begin(), again.begin(), again.end());
  program_.backward_peak += program_.saved;
  program_.saved = Bytes(inbound);
  program_.gathered = Bytes(0);
}

SegmentProgram SegmentLowerer::run(const Segment& segment) {
  segment_ = segment;
  for (int i = segment.first_op; i < segment.last_op; ++i) forward_op(i);
  double saved = kept_extra_;
  for (const auto& [id, bytes] : kept_) saved += bytes;
  if (stage_.recompute == Recompute::kSelective) saved -= attention_extra_;
  program_.saved = Bytes(saved);

  forms_.clear();
  for (int i = segment.last_op - 1; i >= segment.first_op; --i) backward_op(i);
  std::vector<std::int32_t> inbound;
  for (const auto& [id, forms] : gradients_) inbound.push_back(id);
  std::sort(inbound.begin(), inbound.end());
  for (std::int32_t id : inbound) return_gradient(ValueId(id), segment.first_op);

  if (stage_.recompute == Recompute::kFull && segment.is_layer) recompute(segment);
  if (stage_.state == StateSharding::kZero2 || stage_.state == StateSharding::kZero3) {
    shard_state();
  }
  accumulate();
  return std::move(program_);
}

}  // namespace meshwright
