// The backward pass of a segment: the adjoint of its forward pass, operator by operator in reverse,
// under nnScaler's gradient rule (see strategy.h), then what state sharding and micro-batches ask
// of the gradients of parameters.
#include "base/error.h"
#include "plan/segment_lowerer.h"

namespace meshwright {

// All consumers of a value have added their gradients: bring the sum to the value's resting form.
// Gradients that lie alike are added locally and travel once.
void SegmentLowerer::return_gradient(ValueId id, int op) {
  std::vector<Form> forms = std::move(contributions_[id.value]);
  contributions_.erase(id.value);
  if (forms.empty()) return;
  const bool parameter = graph_.value(id).kind == ValueKind::kParameter;
  Sharding target = parameter ? resting(id).resolved() : gradient_resting(id);
  if (parameter) target.partial = parameter_partial(id);
  Instrs& out = parameter && split_backward_ ? program_.weight : program_.backward;
  std::vector<std::int32_t> arrived;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    if (forms[i].buffer < 0) continue;
    std::vector<std::int32_t> alike = {forms[i].buffer};
    for (std::size_t j = i + 1; j < forms.size(); ++j) {
      if (forms[j].buffer < 0 || !(forms[j].sharding == forms[i].sharding)) continue;
      alike.push_back(forms[j].buffer);
      forms[j].buffer = -1;
    }
    int sum = alike[0];
    if (alike.size() > 1) {
      sum = new_buffer(id, BufferKind::kGradient, forms[i].sharding);
      emit_local(out, InstrKind::kAdd, std::move(alike), {sum}, op);
    }
    arrived.push_back(emit_reshard(out, sum, target, op));
  }
  int whole = arrived[0];
  if (arrived.size() > 1) {
    whole = new_buffer(id, BufferKind::kGradient, target);
    emit_local(out, InstrKind::kAdd, std::move(arrived), {whole}, op);
  }
  gradient_[id.value] = whole;
}

// Operand k as the backward pass of an operator needs it. Operands kept in a smaller form
// (sequence-parallel shards) are gathered again, once per form.
int SegmentLowerer::saved_operand(int index, std::size_t k) {
  const ValueId id = op_at(index).inputs[k];
  const Value& value = graph_.value(id);
  std::vector<Form>& forms = forms_[id.value];
  const Sharding form = wanted(index, k);
  if (value.kind != ValueKind::kActivation ||
      bytes_of(id, forms[0].sharding) >= bytes_of(id, form)) {
    return operand(program_.backward, index, k);
  }
  std::vector<Form>& again = regathered_[id.value];
  for (const Form& f : again) {
    if (f.sharding == form) return f.buffer;
  }
  const std::size_t first = program_.backward.size();
  const int buffer = emit_reshard(program_.backward, forms[0].buffer, form, index);
  for (std::size_t n = first; n < program_.backward.size(); ++n) {
    program_.backward[n].regather = true;
  }
  program_.gathered += bytes_of(id, form) - bytes_of(id, forms[0].sharding);
  again.push_back({form, buffer});
  return buffer;
}

void SegmentLowerer::backward_op(int index) {
  const Op& op = op_at(index);
  const LoweredOp& l = lowered(index);
  const bool due =
      std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return has_gradient(id); });
  if (!has_backward(index) || !due) return;
  double live = 0;
  std::vector<std::int32_t> in;
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const ValueId id = op.outputs[k];
    live += l.outputs[k].bytes().value;
    in.push_back(-1);
    if (!has_gradient(id)) continue;
    if (t_.gradient_crosses(id)) {
      // What later segments have added up.
      const Sharding rest = gradient_resting(id);
      const int buffer = new_buffer(id, BufferKind::kGradient, rest);
      program_.gradient_arguments.push_back(buffer);
      auto& forms = contributions_[id.value];
      forms.insert(forms.begin(), {rest, buffer});
    } else if (!contributions_.contains(id.value)) {
      // The seed: the gradient of the loss by itself is one.
      const Sharding rest = gradient_resting(id);
      const int buffer = new_buffer(id, BufferKind::kGradient, rest);
      program_.gradient_arguments.push_back(buffer);
      contributions_[id.value].push_back({rest, buffer});
    }
    return_gradient(id, index);
    // The gradient of every part of a sum is the gradient of the whole.
    Sharding produced = l.out[k];
    produced.partial = gradient_resting(id).partial;
    in.back() = emit_reshard(program_.backward, gradient_.at(id.value), produced, index);
  }
  std::vector<std::int32_t> operands(op.inputs.size(), -1);
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const bool saved = std::find(l.saved.inputs.begin(), l.saved.inputs.end(),
                                 static_cast<int>(k)) != l.saved.inputs.end();
    const bool activation = graph_.value(op.inputs[k]).kind == ValueKind::kActivation;
    if (activation && !saved) continue;
    const auto halo = with_halo_.find({index, k});
    if (halo != with_halo_.end()) {
      operands[k] = twin(halo->second);
      continue;
    }
    operands[k] = saved_operand(index, k);
    if (activation && bytes_of(op.inputs[k], resting(op.inputs[k])) < l.inputs[k].bytes()) {
      live += l.inputs[k].bytes().value;
    }
  }
  operands = emit_ring(program_.backward, index, std::move(operands));
  std::vector<std::int32_t> results(op.outputs.size(), -1);
  for (int k : l.saved.outputs) {
    const int made = produced_.at(op.outputs[static_cast<std::size_t>(k)].value);
    results[static_cast<std::size_t>(k)] = twin(made);
  }
  if (op.kind == "attention" && recompute_ == Recompute::kSelective) {
    std::vector<std::int32_t> again;
    for (std::size_t k = 0; k < op.outputs.size(); ++k) {
      again.push_back(new_buffer(op.outputs[k], BufferKind::kValue, l.out[k]));
      if (results[k] >= 0) results[k] = again[k];
    }
    emit_compute(program_.backward, l, index, Purpose::kRecompute, operands, again);
  }
  in.insert(in.end(), operands.begin(), operands.end());
  in.insert(in.end(), results.begin(), results.end());

  std::vector<std::int32_t> out(op.inputs.size(), -1);
  std::vector<std::int32_t> ring_in, ring_out;
  std::vector<std::size_t> halo_back;
  bool of_values = false;
  bool of_parameters = false;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const ValueId id = op.inputs[k];
    const bool activation = graph_.value(id).kind == ValueKind::kActivation;
    if (activation && is_floating(graph_.value(id).type.dtype)) live += l.inputs[k].bytes().value;
    if (!has_gradient(id)) continue;
    (activation ? of_values : of_parameters) = true;
    Sharding form = operand_gradient(index, k);
    out[k] = new_buffer(id, BufferKind::kGradient, form);
    int buffer = out[k];
    if (!l.halo.empty() && l.halo[k].dim >= 0) {
      halo_back.push_back(k);
      continue;
    }
    if (l.strategy.ring) {
      const Sharding whole = gathered_keys(l, k, form);
      if (!(whole == form)) {
        // The ring brings whole gradients back to their owners.
        Buffer& everywhere = program_.buffers[static_cast<std::size_t>(out[k])];
        everywhere.form = whole;
        everywhere.form.partial |= stage_.roles.context.mask();
        buffer = new_buffer(id, BufferKind::kGradient, form);
        ring_in.push_back(out[k]);
        ring_out.push_back(buffer);
      }
    }
    contributions_[id.value].push_back({form, buffer});
  }
  const std::vector<std::int32_t> gradients = out;
  if (split_backward_ && of_values && of_parameters && l.work.backward_weight_flops.value > 0) {
    // Gradients of parameters wait for their own pass, which reads the operands once more.
    std::vector<std::int32_t> values = out, parameters = out;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const bool activation = graph_.value(op.inputs[k]).kind == ValueKind::kActivation;
      (activation ? parameters : values)[k] = -1;
    }
    emit_compute(program_.backward, l, index, Purpose::kBackward, in, values);
    emit_compute(program_.weight, l, index, Purpose::kBackward, in, parameters);
    Instr& first = program_.backward.back();
    Instr& second = program_.weight.back();
    first.flops = l.work.backward_input_flops;
    second.flops = l.work.backward_weight_flops;
    first.traffic = second.traffic = l.work.backward_traffic / 2;
    second.pointwise = Bytes(0);
    second.kernels = l.work.backward_kernels / 2;
    first.kernels -= second.kernels;
  } else {
    Instrs& list = split_backward_ && !of_values ? program_.weight : program_.backward;
    emit_compute(list, l, index, Purpose::kBackward, std::move(in), std::move(out));
  }
  for (std::size_t k : halo_back) {
    const int buffer = emit_halo(program_.backward, index, k, gradients[k], true);
    contributions_[op.inputs[k].value].push_back({operand_gradient(index, k), buffer});
  }
  if (!ring_in.empty()) {
    Instr instr = ring(index);
    attach(instr, ring_in, ring_out);
    program_.backward.push_back(instr);
  }
  program_.backward_peak = std::max(program_.backward_peak, Bytes(live));
}

void SegmentLowerer::return_parameter_gradients() {
  for (const ParameterShard& p : program_.parameters) {
    if (!contributions_.contains(p.value.value)) continue;
    return_gradient(p.value, segment_.first_op);
    parameter_gradients_.emplace_back(p.value, gradient_.at(p.value.value));
  }
}

// FSDP / ZeRO-3 (Zhao et al. 2023): parameters rest in shards and are gathered before a segment's
// forward and backward pass.
void SegmentLowerer::gather_state() {
  for (const bool grouped : {false, true}) {
    const AxisList& axes = grouped ? stage_.expert_state_axes : stage_.state_axes;
    if (axes.empty() || stage_.mesh.size(axes) == 1) continue;
    double elements = 0;
    std::vector<std::int32_t> shards, wholes;
    for (ParameterShard& p : program_.parameters) {
      if (p.grouped != grouped) continue;
      elements += p.elements;
      wholes.push_back(p.buffer);
      const Buffer whole = program_.buffers[static_cast<std::size_t>(p.buffer)];
      const int shard =
          new_buffer(p.value, BufferKind::kValue, whole.form, state_shard_axes(stage_, p));
      std::replace(program_.arguments.begin(), program_.arguments.end(), p.buffer, shard);
      p.buffer = shard;
      shards.push_back(shard);
    }
    if (shards.empty()) continue;
    Instr gather;
    gather.kind = InstrKind::kCollective;
    gather.collective = CollectiveKind::kAllGather;
    gather.purpose = Purpose::kParameterGather;
    gather.overlapped = true;
    gather.group = axes;
    gather.bytes = Bytes(elements * training_.parameter_bytes());
    attach(gather, shards, wholes);
    program_.forward.insert(program_.forward.begin(), gather);
    if (!program_.backward.empty()) program_.backward.insert(program_.backward.begin(), gather);
    if (!program_.weight.empty()) program_.weight.insert(program_.weight.begin(), gather);
  }
}

// ZeRO-2 and ZeRO-3: gradients are scattered after every backward pass, those that are summed over
// the same axes together.
void SegmentLowerer::scatter_gradients(Instrs& out) {
  struct Bundle {
    bool grouped;
    std::uint32_t reduce;
    double elements = 0;
    std::vector<std::size_t> members;
  };
  std::vector<Bundle> bundles;
  const auto parameter = [&](ValueId id) -> const ParameterShard& {
    return *std::find_if(program_.parameters.begin(), program_.parameters.end(),
                         [&](const ParameterShard& p) { return p.value == id; });
  };
  for (std::size_t i = 0; i < parameter_gradients_.size(); ++i) {
    const ParameterShard& p = parameter(parameter_gradients_[i].first);
    const std::uint32_t state = (p.grouped ? stage_.expert_state_axes : stage_.state_axes).mask() |
                                stage_.roles.data.mask();
    auto at = std::find_if(bundles.begin(), bundles.end(), [&](const Bundle& b) {
      return b.grouped == p.grouped && b.reduce == (p.reduce & state);
    });
    if (at == bundles.end())
      at = bundles.insert(bundles.end(), {p.grouped, p.reduce & state, 0, {}});
    at->elements += p.elements;
    at->members.push_back(i);
  }
  for (const Bundle& bundle : bundles) {
    const AxisList& axes = bundle.grouped ? stage_.expert_state_axes : stage_.state_axes;
    double bytes = bundle.elements * training_.gradient_bytes();
    // Brings every member's gradient to what `change` makes of its buffer.
    const auto emit = [&](Instr instr, auto&& change) {
      std::vector<std::int32_t> in, result;
      for (std::size_t i : bundle.members) {
        auto& [id, buffer] = parameter_gradients_[i];
        Buffer next = program_.buffers[static_cast<std::size_t>(buffer)];
        change(parameter(id), next);
        in.push_back(buffer);
        buffer = new_buffer(id, BufferKind::kGradient, next.form, next.flat);
        result.push_back(buffer);
      }
      attach(instr, in, result);
      out.push_back(instr);
    };
    Instr instr;
    instr.kind = InstrKind::kCollective;
    instr.purpose = Purpose::kGradient;
    instr.overlapped = true;
    const std::uint32_t sharded = bundle.reduce & axes.mask();
    if (sharded != 0) {
      instr.collective = CollectiveKind::kReduceScatter;
      instr.bytes = Bytes(bytes);
      for (int axis : axes) {
        if (sharded >> axis & 1u) instr.group.push_back(axis);
      }
      emit(instr, [&](const ParameterShard&, Buffer& b) {
        b.form.partial &= ~sharded;
        b.flat = instr.group;
      });
      bytes /= stage_.mesh.size(instr.group);
    }
    if (sharded != axes.mask()) {
      Instr slice;
      slice.kind = InstrKind::kSlice;
      emit(slice,
           [&](const ParameterShard& p, Buffer& b) { b.flat = state_shard_axes(stage_, p); });
    }
    const std::uint32_t rest = bundle.reduce & stage_.roles.data.mask() & ~axes.mask();
    if (rest != 0) {
      instr.collective = CollectiveKind::kAllReduce;
      instr.group = axes_of_mask(rest);
      instr.bytes = Bytes(bytes);
      emit(instr, [&](const ParameterShard&, Buffer& b) { b.form.partial &= ~rest; });
    }
  }
}

// Every backward pass adds its gradients of parameters to those of the micro-batches before: a pass
// over the new gradients and the accumulated ones, one kernel per parameter.
void SegmentLowerer::accumulate() {
  Instrs& out = split_backward_ ? program_.weight : program_.backward;
  const bool sharded =
      stage_.state == StateSharding::kZero2 || stage_.state == StateSharding::kZero3;
  if (sharded) scatter_gradients(out);
  Instr instr;
  instr.kind = InstrKind::kAccumulate;
  instr.purpose = Purpose::kBackward;
  instr.kernel = KernelClass::kMemory;
  instr.dtype = training_.gradient_dtype;
  std::vector<std::int32_t> in, result;
  for (const auto& [id, buffer] : parameter_gradients_) {
    ParameterShard& p =
        *std::find_if(program_.parameters.begin(), program_.parameters.end(),
                      [&, value = id](const ParameterShard& q) { return q.value == value; });
    const AxisList& axes = p.grouped ? stage_.expert_state_axes : stage_.state_axes;
    const double sum = p.elements / (sharded ? stage_.mesh.size(axes) : 1);
    instr.traffic +=
        Bytes(p.elements * training_.parameter_bytes() + sum * 2.0 * training_.gradient_bytes());
    // A reduce_scatter reads a buffer into which the gradient is copied first.
    if (sharded) instr.traffic += Bytes(p.elements * training_.gradient_bytes());
    ++instr.kernels;
    const Buffer gradient = program_.buffers[static_cast<std::size_t>(buffer)];
    p.accumulated = new_buffer(id, BufferKind::kAccumulated, gradient.form, gradient.flat);
    in.push_back(buffer);
    result.push_back(p.accumulated);
  }
  // A shared parameter that is trained elsewhere: nothing is added here, but its sum and its update
  // are those of all stages that hold it.
  for (ParameterShard& p : program_.parameters) {
    if (!p.shared || p.accumulated >= 0 || !has_gradient(p.value)) continue;
    const AxisList& axes = p.grouped ? stage_.expert_state_axes : stage_.state_axes;
    Sharding form = resting(p.value).resolved();
    form.partial = p.reduce;
    if (sharded) form.partial &= ~(axes.mask() | stage_.roles.data.mask());
    p.accumulated = new_buffer(p.value, BufferKind::kAccumulated, form,
                               sharded ? state_shard_axes(stage_, p) : AxisList{});
  }
  if (in.empty()) return;
  attach(instr, in, result);
  out.push_back(instr);
}

// Full recomputation keeps the values that enter the segment and runs its forward pass again.
void SegmentLowerer::recompute() {
  inbound_ = Bytes(0);
  for (std::int32_t b : program_.arguments) {
    const ValueId id = program_.buffers[static_cast<std::size_t>(b)].value;
    if (graph_.value(id).kind == ValueKind::kActivation) inbound_ += resting_bytes(id);
  }
  const std::size_t count = program_.buffers.size();
  remap_.resize(count);
  for (std::size_t b = 0; b < count; ++b) remap_[b] = static_cast<std::int32_t>(b);
  for (const Instr& instr : program_.forward) {
    for (std::int32_t b : program_.out(instr)) {
      const Buffer twin = program_.buffers[static_cast<std::size_t>(b)];
      remap_[static_cast<std::size_t>(b)] = new_buffer(twin.value, twin.kind, twin.form);
      program_.buffers.back().halo = twin.halo;
    }
  }
  for (const Instr& instr : program_.forward) {
    std::vector<std::int32_t> in, out;
    for (std::int32_t b : program_.in(instr)) in.push_back(remap_[static_cast<std::size_t>(b)]);
    for (std::int32_t b : program_.out(instr)) out.push_back(remap_[static_cast<std::size_t>(b)]);
    program_.backward.push_back(instr);
    Instr& again = program_.backward.back();
    attach(again, in, out);
    if (again.kind == InstrKind::kCompute) again.purpose = Purpose::kRecompute;
  }
  for (auto& [id, forms] : forms_) {
    for (Form& f : forms) f.buffer = remap_[static_cast<std::size_t>(f.buffer)];
  }
}

// Runs a part of a co-sharded region again, just before its backward pass: what its operators kept
// from one another is made anew, what came from outside is there. (nnScaler's co-shard: Lin et al.
// 2024, section 5.)
void SegmentLowerer::recompute_part(int last_op) {
  const int part = part_of(last_op);
  int first_op = last_op;
  while (first_op > segment_.first_op && part_of(first_op - 1) == part) --first_op;
  // Results that only leave the part need not be made again.
  std::vector<int> again;
  for (int i = first_op; i <= last_op; ++i) {
    bool needed = !lowered(i).saved.outputs.empty();
    for (ValueId id : op_at(i).outputs) {
      for (const GraphTables::Use& use : t_.uses[id.index()]) {
        needed |= use.op > i && use.op <= last_op;
      }
    }
    if (needed) again.push_back(i);
  }
  for (std::size_t b = remap_.size(); b < program_.buffers.size(); ++b) {
    remap_.push_back(static_cast<std::int32_t>(b));
  }
  const auto last_instr = [&](int op) {
    const std::size_t next = part_index(op) + 1;
    return next < first_instr_.size() ? first_instr_[next] : program_.forward.size();
  };
  std::vector<char> made(program_.buffers.size());
  for (int i : again) {
    for (std::size_t n = first_instr_[part_index(i)]; n < last_instr(i); ++n) {
      const Instr instr = program_.forward[n];
      std::vector<std::int32_t> in, out;
      for (std::int32_t b : program_.in(instr)) in.push_back(b);
      for (std::int32_t b : program_.out(instr)) out.push_back(b);
      for (std::int32_t& b : in) {
        if (b < 0) continue;
        const Buffer buffer = program_.buffers[static_cast<std::size_t>(b)];
        const bool activation = graph_.value(buffer.value).kind == ValueKind::kActivation;
        const std::vector<Form>& forms = forms_[buffer.value.value];
        if (made[static_cast<std::size_t>(b)] || !activation || forms.empty() ||
            forms[0].buffer == twin(b)) {
          b = twin(b);
          continue;
        }
        // A form that another part brought about: from the resting one again.
        std::vector<Form>& known = regathered_[buffer.value.value];
        const auto at = std::find_if(known.begin(), known.end(),
                                     [&](const Form& f) { return f.sharding == buffer.form; });
        if (at != known.end()) {
          b = at->buffer;
          continue;
        }
        b = emit_reshard(program_.backward, forms[0].buffer, buffer.form, i);
        known.push_back({buffer.form, b});
      }
      for (std::int32_t& b : out) {
        const Buffer twin_of = program_.buffers[static_cast<std::size_t>(b)];
        const int next = new_buffer(twin_of.value, twin_of.kind, twin_of.form);
        program_.buffers.back().halo = twin_of.halo;
        remap_[static_cast<std::size_t>(b)] = next;
        made[static_cast<std::size_t>(b)] = 1;
        b = next;
      }
      program_.backward.push_back(instr);
      Instr& copy = program_.backward.back();
      attach(copy, in, out);
      if (copy.kind == InstrKind::kCompute) copy.purpose = Purpose::kRecompute;
    }
  }
  for (int i : again) {
    for (ValueId id : op_at(i).outputs) {
      for (Form& f : forms_[id.value]) f.buffer = twin(f.buffer);
    }
  }
}

}  // namespace meshwright
