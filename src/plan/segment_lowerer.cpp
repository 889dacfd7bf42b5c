#include "plan/segment_lowerer.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {

Purpose SegmentLowerer::communication_purpose(const AxisList& axes, int op) const {
  const std::string& kind = op_at(op).kind;
  if (kind.starts_with("moe_") || kind.starts_with("grouped")) return Purpose::kExpert;
  const std::uint32_t mask = axes.mask();
  if ((mask & stage_.roles.tensor.mask()) != 0) return Purpose::kTensor;
  if ((mask & stage_.roles.context.mask()) != 0) return Purpose::kContext;
  return Purpose::kTensor;
}

int SegmentLowerer::new_buffer(ValueId id, BufferKind kind, const Sharding& form,
                               const AxisList& flat) {
  program_.buffers.push_back({id, kind, form, flat});
  return static_cast<int>(program_.buffers.size()) - 1;
}

void SegmentLowerer::attach(Instr& instr, std::span<const std::int32_t> in,
                            std::span<const std::int32_t> out) {
  instr.operands = static_cast<std::uint32_t>(program_.operands.size());
  instr.in_count = static_cast<std::uint32_t>(in.size());
  instr.out_count = static_cast<std::uint32_t>(out.size());
  program_.operands.insert(program_.operands.end(), in.begin(), in.end());
  program_.operands.insert(program_.operands.end(), out.begin(), out.end());
}

void SegmentLowerer::emit_local(Instrs& out, InstrKind kind, std::vector<std::int32_t> in,
                                std::vector<std::int32_t> result, int op) {
  Instr instr;
  instr.kind = kind;
  instr.op = OpId(op);
  attach(instr, in, result);
  out.push_back(instr);
}

int SegmentLowerer::emit_reshard(Instrs& out, int buffer, const Sharding& to, int op) {
  const Buffer from = program_.buffers[static_cast<std::size_t>(buffer)];
  if (from.form == to) return buffer;
  for (const ReshardStep& step :
       types_.reshards().reshard(micro_type(from.value), from.form, to, stage_.mesh)) {
    const int next = new_buffer(from.value, from.kind, step.to);
    Instr instr;
    instr.op = OpId(op);
    if (step.local) {
      instr.kind = InstrKind::kSlice;
    } else {
      instr.kind = InstrKind::kCollective;
      instr.collective = step.kind;
      instr.group = step.axes;
      instr.bytes = step.bytes;
      instr.purpose = communication_purpose(step.axes, op);
    }
    const std::int32_t in[] = {buffer}, result[] = {next};
    attach(instr, in, result);
    out.push_back(instr);
    buffer = next;
  }
  return buffer;
}

void SegmentLowerer::emit_compute(Instrs& out, const LoweredOp& l, int index, Purpose purpose,
                                  std::vector<std::int32_t> in, std::vector<std::int32_t> results) {
  const bool forward = purpose != Purpose::kBackward;
  Instr instr;
  instr.purpose = purpose;
  instr.op = OpId(index);
  instr.kernel = l.work.kernel;
  instr.dtype = training_.dtype;
  attach(instr, in, results);
  if (l.work.kernel != KernelClass::kView) {
    instr.flops =
        forward ? l.work.forward_flops : l.work.backward_input_flops + l.work.backward_weight_flops;
    instr.traffic = forward ? l.work.forward_traffic : l.work.backward_traffic;
    instr.pointwise = forward ? l.work.forward_pointwise : l.work.backward_pointwise;
    instr.kernels = forward ? l.work.forward_kernels : l.work.backward_kernels;
    instr.matmul = l.work.matmul;
  }
  out.push_back(instr);
  if (forward) emit_own_sums(out, l, index, purpose);
}

// Sums inside an operator: no buffer of the program takes part.
void SegmentLowerer::emit_own_sums(Instrs& out, const LoweredOp& l, int index, Purpose purpose) {
  const int sums = l.def->own_sums;
  if (sums == 0 || l.out[0].partial == 0) return;
  Instr instr;
  instr.kind = InstrKind::kCollective;
  instr.purpose = purpose == Purpose::kRecompute ? purpose : Purpose::kTensor;
  instr.op = OpId(index);
  instr.collective = CollectiveKind::kAllReduce;
  instr.group = axes_of_mask(l.out[0].partial);
  instr.bytes = l.outputs[0].bytes() * sums;
  attach(instr, {}, {});
  out.push_back(instr);
}

// Ring attention (Liu et al. 2023): keys and values of every other device pass by; their gradients
// too on the way back. `operands` are replaced by what the ring makes of them.
std::vector<std::int32_t> SegmentLowerer::emit_ring(Instrs& out, int index,
                                                    std::vector<std::int32_t> operands) {
  const LoweredOp& l = lowered(index);
  if (!l.strategy.ring) return operands;
  Instr instr = ring(index);
  std::vector<std::int32_t> in, result;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    if (operands[k] < 0) continue;
    const Buffer from = program_.buffers[static_cast<std::size_t>(operands[k])];
    const Sharding whole = gathered_keys(l, k, from.form);
    if (whole == from.form) continue;
    in.push_back(operands[k]);
    operands[k] = new_buffer(from.value, from.kind, whole);
    result.push_back(operands[k]);
  }
  attach(instr, in, result);
  out.push_back(instr);
  return operands;
}

// Neighbours along a split dimension exchange border rows (`back`: the gradients of such rows,
// which their owners add).
int SegmentLowerer::emit_halo(Instrs& out, int index, std::size_t k, int buffer, bool back) {
  const LoweredOp& l = lowered(index);
  if (l.halo.empty() || l.halo[k].dim < 0 || buffer < 0) return buffer;
  const Buffer from = program_.buffers[static_cast<std::size_t>(buffer)];
  const auto d = static_cast<std::size_t>(l.halo[k].dim);
  const int next = new_buffer(from.value, from.kind, from.form);
  program_.buffers[static_cast<std::size_t>(back ? buffer : next)].halo = l.halo[k];
  Instr instr;
  instr.kind = InstrKind::kCollective;
  instr.collective = CollectiveKind::kHalo;
  instr.group = from.form.dims[d];
  const std::int64_t own = l.inputs[k].dims[d].size;
  instr.bytes = l.inputs[k].bytes() * (l.halo[k].before + l.halo[k].after) /
                static_cast<double>(std::max<std::int64_t>(own, 1));
  instr.op = OpId(index);
  instr.purpose = communication_purpose(instr.group, index);
  const std::int32_t in[] = {buffer}, result[] = {next};
  attach(instr, in, result);
  out.push_back(instr);
  return next;
}

// All rounds of one way around: keys and values, or their gradients.
Instr SegmentLowerer::ring(int index) {
  const LoweredOp& l = lowered(index);
  double bytes = 0;
  for (std::size_t k = 1; k < std::min<std::size_t>(3, l.inputs.size()); ++k) {
    bytes += l.inputs[k].bytes().value;
  }
  Instr instr;
  instr.kind = InstrKind::kCollective;
  instr.collective = CollectiveKind::kRing;
  instr.purpose = Purpose::kContext;
  instr.group = stage_.roles.context;
  instr.bytes = Bytes(bytes * (stage_.mesh.size(stage_.roles.context) - 1));
  instr.op = OpId(index);
  instr.overlapped = true;
  return instr;
}

// The buffer with operand k of an operator, brought there if it is not yet.
int SegmentLowerer::operand(Instrs& out, int index, std::size_t k) {
  const ValueId id = op_at(index).inputs[k];
  const Value& value = graph_.value(id);
  const Sharding form = wanted(index, k);
  std::vector<Form>& forms = forms_[id.value];
  for (const Form& f : forms) {
    if (f.sharding == form) return f.buffer;
  }
  if (value.kind == ValueKind::kInput || value.kind == ValueKind::kBuffer) {
    forms.push_back({form, new_buffer(id, BufferKind::kValue, form)});
    return forms.back().buffer;
  }
  if (forms.empty()) {
    const Sharding rest = resting(id);
    forms.push_back({rest, new_buffer(id, BufferKind::kValue, rest)});
    program_.arguments.push_back(forms.back().buffer);
    if (rest == form) return forms.back().buffer;
  }
  const int buffer = emit_reshard(out, forms[0].buffer, form, index);
  forms_[id.value].push_back({form, buffer});
  return buffer;
}

void SegmentLowerer::keep(ValueId id, Bytes wanted) {
  const ValueId root = storage(id);
  const Value& value = graph_.value(root);
  if (value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer) return;
  const double bytes = std::min(wanted.value, bytes_of(id, resting(id)).value);
  const auto [it, fresh] = kept_.try_emplace(root.value, bytes);
  if (!fresh) it->second = std::min(it->second, bytes);
}

void SegmentLowerer::note_parameter(int index, std::size_t k) {
  const ValueId id = op_at(index).inputs[k];
  const bool grouped = op_at(index).kind.starts_with("grouped");
  if (stage_.state != StateSharding::kNone) {
    const std::uint32_t state = (grouped ? stage_.expert_state_axes : stage_.state_axes).mask();
    std::uint32_t split = 0;
    const Sharding rest = resting(id);
    for (int d = 0; d < rest.rank; ++d) split |= rest.dims[static_cast<std::size_t>(d)].mask();
    if ((state & split) != 0) {
      throw Error(
          fmt::format("state is sharded over an axis that splits parameter '{}': {}",
                      graph_.value(id).name, to_string(rest, graph_.value(id).type, stage_.mesh)),
          {}, "shard state over axes that split no parameter (data, context)");
    }
  }
  const auto found = std::find_if(program_.parameters.begin(), program_.parameters.end(),
                                  [&](const ParameterShard& p) { return p.value == id; });
  if (found != program_.parameters.end()) return;
  ParameterShard p;
  p.value = id;
  p.elements = lowered(index).inputs[k].elements();
  p.reduce = parameter_partial(id);
  p.grouped = grouped;
  p.shared = t_.segment_uses(id) > 1;
  p.buffer = forms_[id.value][0].buffer;
  program_.parameters.push_back(p);
}

void SegmentLowerer::find_parts() {
  int part = -1;
  std::string_view current;
  for (int i = segment_.first_op; i < segment_.last_op; ++i) {
    const std::string_view name = op_at(i).name;
    const std::size_t at = name.find("@co");
    std::string_view digits;
    if (at != std::string_view::npos) {
      const std::size_t end = name.find_first_not_of("0123456789", at + 3);
      digits = name.substr(at + 3, end == std::string_view::npos ? end : end - at - 3);
    }
    const bool before = i > segment_.first_op && parts_.back() >= 0;
    if (!digits.empty() && (!before || digits != current)) part_saved_.push_back(0), ++part;
    parts_.push_back(digits.empty() ? -1 : part);
    current = digits;
  }
}

void SegmentLowerer::forward_op(int index) {
  first_instr_.push_back(program_.forward.size());
  const Op& op = op_at(index);
  const LoweredOp& l = lowered(index);
  const bool loss = op.kind == "cross_entropy";
  double live = loss ? 0 : l.saved.extra.value;
  if (loss && has_backward(index)) program_.loss += l.saved.extra;
  std::vector<std::int32_t> in, out;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    in.push_back(operand(program_.forward, index, k));
    const int with_halo = emit_halo(program_.forward, index, k, in.back(), false);
    if (with_halo != in.back()) with_halo_[{index, k}] = in.back() = with_halo;
    if (graph_.value(op.inputs[k]).kind == ValueKind::kParameter) note_parameter(index, k);
  }
  in = emit_ring(program_.forward, index, std::move(in));
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    out.push_back(new_buffer(op.outputs[k], BufferKind::kValue, l.out[k]));
    live += l.outputs[k].bytes().value;
  }
  emit_compute(program_.forward, l, index, Purpose::kForward, std::move(in), out);
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const ValueId id = op.outputs[k];
    const auto buffer = static_cast<std::size_t>(out[k]);
    produced_[id.value] = out[k];
    int rest = out[k];
    if (program_.buffers[buffer].form.partial != 0) {
      rest = emit_reshard(program_.forward, out[k], resting(id), index);
    }
    forms_[id.value] = {{program_.buffers[static_cast<std::size_t>(rest)].form, rest}};
    if (t_.crosses(id)) program_.results.push_back(rest);
  }
  program_.forward_peak = std::max(program_.forward_peak, Bytes(live));
  // What no gradient passes (a recycled iteration) keeps nothing.
  if (!has_backward(index)) return;
  if (const int part = part_of(index); part >= 0) {
    double& inside = part_saved_[static_cast<std::size_t>(part)];
    for (int k : l.saved.inputs) {
      const auto i = static_cast<std::size_t>(k);
      const OpId producer = graph_.value(op.inputs[i]).producer;
      const bool own = producer.valid() && producer.value >= segment_.first_op &&
                       part_of(producer.value) == part;
      if (own)
        inside += l.inputs[i].bytes().value;
      else
        keep(op.inputs[i], l.inputs[i].bytes());
    }
    inside += l.saved.extra.value;
    return;
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
}

// What is left of a list's buffers dies after the instruction that uses it last.
void SegmentLowerer::insert_frees(Instrs& list, std::vector<char>& keep) {
  // Per buffer its last user, then the buffers in the order of their last users.
  last_use_.assign(keep.size(), -1);
  std::size_t count = 0;
  for (std::size_t i = list.size(); i-- > 0;) {
    const auto consider = [&](std::int32_t b) {
      if (b < 0 || keep[static_cast<std::size_t>(b)]) return;
      std::int32_t& last = last_use_[static_cast<std::size_t>(b)];
      if (last < 0) last = static_cast<std::int32_t>(i), ++count;
    };
    for (std::int32_t b : program_.out(list[i])) consider(b);
    for (std::int32_t b : program_.in(list[i])) consider(b);
  }
  dying_at_.assign(list.size() + 1, 0);
  for (std::int32_t i : last_use_) {
    if (i >= 0) ++dying_at_[static_cast<std::size_t>(i) + 1];
  }
  std::size_t dying_instrs = 0;
  for (std::size_t i = 1; i < dying_at_.size(); ++i) {
    dying_instrs += dying_at_[i] != 0;
    dying_at_[i] += dying_at_[i - 1];
  }
  dying_.resize(count);
  const std::vector<std::int32_t> begin = dying_at_;
  for (std::size_t b = 0; b < last_use_.size(); ++b) {
    if (last_use_[b] < 0) continue;
    dying_[static_cast<std::size_t>(dying_at_[static_cast<std::size_t>(last_use_[b])]++)] =
        static_cast<std::int32_t>(b);
  }
  // What this list reads before writing it must survive the lists before.
  written_.assign(keep.size(), 0);
  for (const Instr& instr : list) {
    for (std::int32_t b : program_.in(instr)) {
      if (b >= 0 && !written_[static_cast<std::size_t>(b)]) keep[static_cast<std::size_t>(b)] = 1;
    }
    for (std::int32_t b : program_.out(instr)) {
      if (b >= 0) written_[static_cast<std::size_t>(b)] = 1;
    }
  }
  Instrs with_frees;
  with_frees.reserve(list.size() + dying_instrs);
  for (std::size_t i = 0; i < list.size(); ++i) {
    with_frees.push_back(list[i]);
    const auto first = static_cast<std::size_t>(begin[i]);
    const auto last = static_cast<std::size_t>(begin[i + 1]);
    if (first == last) continue;
    Instr instr;
    instr.kind = InstrKind::kFree;
    instr.op = list[i].op;
    attach(instr, std::span(dying_).subspan(first, last - first), {});
    with_frees.push_back(instr);
  }
  list = std::move(with_frees);
}

void SegmentLowerer::free_buffers() {
  // Not this segment's to free: what it was given and what it leaves, and data of the graph.
  std::vector<char> keep(program_.buffers.size());
  for (std::size_t b = 0; b < keep.size(); ++b) {
    const Buffer& buffer = program_.buffers[b];
    const ValueKind kind = graph_.value(buffer.value).kind;
    keep[b] = buffer.kind == BufferKind::kAccumulated ||
              (buffer.kind == BufferKind::kValue &&
               (kind == ValueKind::kInput || kind == ValueKind::kBuffer));
  }
  for (const auto* list : {&program_.arguments, &program_.results, &program_.gradient_arguments,
                           &program_.gradient_results}) {
    for (std::int32_t b : *list) keep[static_cast<std::size_t>(b)] = 1;
  }
  insert_frees(program_.weight, keep);
  insert_frees(program_.backward, keep);
  insert_frees(program_.forward, keep);
}

SegmentProgram SegmentLowerer::run(int index) {
  index_ = index;
  segment_ = t_.segments[static_cast<std::size_t>(index)];
  program_.segment = index;
  const auto ops = static_cast<std::size_t>(segment_.last_op - segment_.first_op);
  program_.buffers.reserve(8 * ops);
  program_.operands.reserve(24 * ops);
  program_.forward.reserve(3 * ops);
  program_.backward.reserve(4 * ops);
  forms_.reserve(4 * ops);
  ops_.reserve(2 * ops);
  Recompute mode = stage_.recompute;
  if (t_.overrides != nullptr && !t_.overrides->recompute.empty()) {
    const std::int8_t own = t_.overrides->recompute[static_cast<std::size_t>(index)];
    if (own >= 0) mode = static_cast<Recompute>(own);
  }
  recompute_ = mode;
  if (mode == Recompute::kParts) find_parts();
  for (int i = segment_.first_op; i < segment_.last_op; ++i) forward_op(i);
  double saved = kept_extra_;
  for (const auto& [id, bytes] : kept_) saved += bytes;
  if (mode == Recompute::kSelective) saved -= attention_extra_;
  program_.saved = Bytes(saved);

  bool any_backward = false;
  for (int i = segment_.first_op; i < segment_.last_op; ++i) any_backward |= has_backward(i);
  const bool again = mode == Recompute::kFull && segment_.is_layer && any_backward;
  if (again) recompute();
  for (int i = segment_.last_op - 1; i >= segment_.first_op; --i) {
    const int part = part_of(i);
    if (part >= 0 && (i + 1 == segment_.last_op || part_of(i + 1) != part)) recompute_part(i);
    backward_op(i);
  }
  if (!part_saved_.empty()) {
    program_.backward_peak += Bytes(*std::max_element(part_saved_.begin(), part_saved_.end()));
  }
  std::vector<std::int32_t> inbound;
  for (const auto& [id, forms] : contributions_) {
    if (graph_.value(ValueId(id)).kind == ValueKind::kActivation) inbound.push_back(id);
  }
  std::sort(inbound.begin(), inbound.end());
  for (std::int32_t id : inbound) {
    return_gradient(ValueId(id), segment_.first_op);
    program_.gradient_results.push_back(gradient_.at(id));
  }
  return_parameter_gradients();
  if (again) {
    program_.backward_peak += program_.saved;
    program_.saved = inbound_;
    program_.gathered = Bytes(0);
  }
  if (stage_.state == StateSharding::kZero3) gather_state();
  accumulate();
  free_buffers();
  return std::move(program_);
}

}  // namespace meshwright
