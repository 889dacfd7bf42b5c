#include "plan/lower.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "plan/schedule.h"

namespace meshwright {

std::string_view purpose_name(Purpose purpose) {
  constexpr std::string_view kNames[] = {"forward",  "backward", "recompute", "tensor",   "context",
                                         "expert",   "param gather", "gradient", "pipeline", "optimizer"};
  return kNames[static_cast<std::size_t>(purpose)];
}

struct SegmentLowering::Impl {
  const Graph& graph;
  const std::vector<Segment>& segments;
  std::vector<int> segment_of_op;
  std::vector<std::vector<std::pair<int, int>>> consumers;  // per value: (op, operand position)

  Impl(const Graph& g, const std::vector<Segment>& s) : graph(g), segments(s) {
    segment_of_op.resize(g.ops.size());
    for (std::size_t i = 0; i < s.size(); ++i) {
      for (int op = s[i].first_op; op < s[i].last_op; ++op) {
        segment_of_op[static_cast<std::size_t>(op)] = static_cast<int>(i);
      }
    }
    consumers.resize(g.values.size());
    for (std::size_t op = 0; op < g.ops.size(); ++op) {
      for (std::size_t k = 0; k < g.ops[op].inputs.size(); ++k) {
        consumers[g.ops[op].inputs[k].index()].emplace_back(static_cast<int>(op), static_cast<int>(k));
      }
    }
  }
};

namespace {

// One operator under a stage's roles.
struct LoweredOp {
  const OpDef* def = nullptr;
  Rule rule;
  Strategy strategy;
};

// A form in which a value exists on the devices.
struct Version {
  Sharding sharding;
  int parent = -1;               // Version it was resharded from.
};

struct ValueState {
  std::vector<Version> versions;
  std::vector<std::pair<int, Sharding>> gradients;  // (version, how the gradient lies)
  bool needs_gradient = false;
};

class Lowerer {
 public:
  Lowerer(const Graph& graph, const std::vector<std::vector<std::pair<int, int>>>& consumers,
          const Stage& stage, const Training& training, std::int64_t samples)
      : graph_(graph), consumers_(consumers), stage_(stage), training_(training), samples_(samples) {}

  SegmentProgram run(const Segment& segment);

 private:
  const LoweredOp& lowered(int op);
  TensorType micro_type(ValueId id) const;
  Sharding resting(ValueId id);
  int version_for(ValueId id, const Sharding& wanted, std::vector<Instr>& out, int op);
  void emit_reshard(std::vector<Instr>& out, const TensorType& type, const Sharding& from,
                    const Sharding& to, int op);
  Instr compute(const LoweredOp& op, const Work& work, Purpose purpose, bool forward, int index) const;
  Purpose communication_purpose(const AxisList& axes, int op) const;
  Bytes bytes_of(ValueId id, const Sharding& sharding) const {
    return local_bytes(micro_type(id), sharding, stage_.mesh);
  }

  void forward_op(int op);
  void backward_op(int op);
  void ring(std::vector<Instr>& out, int op, Purpose purpose, double factor);

  const Graph& graph_;
  const std::vector<std::vector<std::pair<int, int>>>& consumers_;
  const Stage& stage_;
  const Training& training_;
  const std::int64_t samples_;
  std::unordered_map<int, LoweredOp> ops_;
  std::unordered_map<std::int32_t, ValueState> values_;
  std::unordered_map<std::int32_t, double> saved_values_;  // value -> bytes kept
  double saved_extra_ = 0;
  double selective_saved_ = 0;      // what selective recomputation drops
  std::vector<Instr> attention_again_;
  SegmentProgram program_;
};

TensorType Lowerer::micro_type(ValueId id) const {
  TensorType type = graph_.value(id).type;
  for (Dim& dim : type.dims) {
    if (dim.name == "batch") dim.size = samples_;
  }
  return type;
}

const LoweredOp& Lowerer::lowered(int index) {
  const auto it = ops_.find(index);
  if (it != ops_.end()) return it->second;
  const Op& op = graph_.ops[static_cast<std::size_t>(index)];
  LoweredOp result;
  result.def = &find_op(op.kind);
  std::vector<TensorType> types;
  types.reserve(op.inputs.size());
  for (ValueId id : op.inputs) types.push_back(micro_type(id));
  result.rule = rule_of(*result.def, {op.attrs, types, {}});
  result.strategy = strategy_for(result.rule, types, stage_.roles, stage_.mesh);
  return ops_.emplace(index, std::move(result)).first->second;
}

// How a value lies once its producer is done: as computed, but with sums resolved towards what its first
// consumer wants (partial sums never leave the operator's neighbourhood).
Sharding Lowerer::resting(ValueId id) {
  const Value& value = graph_.value(id);
  const auto& uses = consumers_[id.index()];
  if (!value.producer.valid()) {
    if (uses.empty()) return {};
    const LoweredOp& user = lowered(uses[0].first);
    return input_sharding(user.rule, user.strategy, static_cast<std::size_t>(uses[0].second));
  }
  const LoweredOp& producer = lowered(value.producer.value);
  const Op& op = graph_.op(value.producer);
  const auto position = static_cast<std::size_t>(
      std::find(op.outputs.begin(), op.outputs.end(), id) - op.outputs.begin());
  const Sharding produced = output_sharding(producer.rule, producer.strategy, position);
  if (produced.partial == 0) return produced;
  if (uses.empty()) return produced.resolved();
  const LoweredOp& user = lowered(uses[0].first);
  return input_sharding(user.rule, user.strategy, static_cast<std::size_t>(uses[0].second));
}

Purpose Lowerer::communication_purpose(const AxisList& axes, int op) const {
  const std::string& kind = graph_.ops[static_cast<std::size_t>(op)].kind;
  if (kind.starts_with("moe_dispatch") || kind.starts_with("moe_combine") ||
      kind.starts_with("grouped")) {
    return Purpose::kExpert;
  }
  const std::uint32_t mask = axes.mask();
  if (mask & stage_.roles.tensor.mask()) return Purpose::kTensor;
  if (mask & stage_.roles.context.mask()) return Purpose::kContext;
  return Purpose::kExpert;
}

void Lowerer::emit_reshard(std::vector<Instr>& out, const TensorType& type, const Sharding& from,
                           const Sharding& to, int op) {
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

int Lowerer::version_for(ValueId id, const Sharding& wanted, std::vector<Instr>& out, int op) {
  ValueState& state = values_[id.value];
  if (state.versions.empty()) state.versions.push_back({resting(id), -1});
  for (std::size_t i = 0; i < state.versions.size(); ++i) {
    if (state.versions[i].sharding == wanted) return static_cast<int>(i);
  }
  // Parameters, buffers and inputs are laid out as their consumers want them.
  const bool free = !graph_.value(id).producer.valid();
  const int source = 0;
  if (!free) emit_reshard(out, micro_type(id), state.versions[source].sharding, wanted, op);
  state.versions.push_back({wanted, free ? -1 : source});
  return static_cast<int>(state.versions.size()) - 1;
}

Instr Lowerer::compute(const LoweredOp& op, const Work& work, Purpose purpose, bool forward,
                       int index) const {
  Instr instr;
  instr.kind = InstrKind::kCompute;
  instr.purpose = purpose;
  instr.op = OpId(index);
  instr.flops = forward ? work.forward_flops : work.backward_input_flops + work.backward_weight_flops;
  instr.traffic = forward ? work.forward_traffic : work.backward_traffic;
  instr.kernels = forward ? work.forward_kernels : work.backward_kernels;
  instr.kernel = work.kernel;
  instr.matmul = work.matmul;
  instr.dtype = training_.dtype;
  (void)op;
  return instr;
}

// Ring attention (Liu et al. 2023): keys and values visit every device of the ring; all rounds together move
// (n-1)/n of them past each device.
void Lowerer::ring(std::vector<Instr>& out, int index, Purpose purpose, double factor) {
  const LoweredOp& op = lowered(index);
  if (!op.strategy.ring) return;
  const Op& graph_op = graph_.ops[static_cast<std::size_t>(index)];
  double bytes = 0;
  for (std::size_t k = 1; k < std::min<std::size_t>(3, graph_op.inputs.size()); ++k) {
    bytes += bytes_of(graph_op.inputs[k], input_sharding(op.rule, op.strategy, k)).value;
  }
  Instr instr;
  instr.kind = InstrKind::kCollective;
  instr.collective = CollectiveKind::kRing;
  instr.purpose = purpose;
  instr.group = stage_.roles.context;
  instr.bytes = Bytes(bytes * factor * (stage_.mesh.size(stage_.roles.context) - 1));
  instr.op = OpId(index);
  instr.overlapped = true;
  out.push_back(instr);
}

void Lowerer::forward_op(int index) {
  const Op& op = graph_.ops[static_cast<std::size_t>(index)];
  const LoweredOp& l = lowered(index);
  std::vector<TensorType> in, out;
  in.reserve(op.inputs.size());
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const Sharding wanted = input_sharding(l.rule, l.strategy, k);
    version_for(op.inputs[k], wanted, program_.forward, index);
    in.push_back(local_type(micro_type(op.inputs[k]), wanted, stage_.mesh));
    const Value& value = graph_.value(op.inputs[k]);
    if (value.kind == ValueKind::kParameter) {
      const Sharding gradient = input_gradient_sharding(l.rule, l.strategy, k);
      auto found = std::find_if(program_.parameters.begin(), program_.parameters.end(),
                                [&](const ParameterShard& p) { return p.value == op.inputs[k]; });
      if (found == program_.parameters.end()) {
        program_.parameters.push_back(
            {op.inputs[k], in.back().elements(), gradient.partial, op.kind.starts_with("grouped")});
      } else {
        found->reduce |= gradient.partial;
      }
    }
  }
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const Sharding produced = output_sharding(l.rule, l.strategy, k);
    out.push_back(local_type(micro_type(op.outputs[k]), produced, stage_.mesh));
  }
  const OpContext context{op.attrs, in, out};
  const Work work = work_of(*l.def, context);
  ring(program_.forward, index, Purpose::kContext, 1);
  if (work.kernel != KernelClass::kView) {
    program_.forward.push_back(compute(l, work, Purpose::kForward, true, index));
  }
  double live = 0;
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const Sharding produced = output_sharding(l.rule, l.strategy, k);
    ValueState& state = values_[op.outputs[k].value];
    state.versions.push_back({produced, -1});
    if (produced.partial != 0) {
      const Sharding rest = resting(op.outputs[k]);
      emit_reshard(program_.forward, micro_type(op.outputs[k]), produced, rest, index);
      // The partial form is gone; version 0 is what later operators see.
      state.versions[0] = {rest, -1};
    }
    live += out[k].bytes().value;
  }
  for (const TensorType& t : in) {
    if (t.rank() > 0) live += 0;
  }
  // Saved values, each once, in the smallest form in which they exist.
  const Saved saved = saved_of(*l.def, context);
  const auto keep = [&](ValueId id, Bytes local) {
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer) return;
    const ValueState& state = values_[id.value];
    double bytes = local.value;
    for (const Version& v : state.versions) bytes = std::min(bytes, bytes_of(id, v.sharding).value);
    const auto [it, fresh] = saved_values_.try_emplace(id.value, bytes);
    if (!fresh) it->second = std::min(it->second, bytes);
  };
  for (int k : saved.inputs) {
    keep(op.inputs[static_cast<std::size_t>(k)], in[static_cast<std::size_t>(k)].bytes());
  }
  for (int k : saved.outputs) {
    keep(op.outputs[static_cast<std::size_t>(k)], out[static_cast<std::size_t>(k)].bytes());
  }
  saved_extra_ += saved.extra.value;
  if (op.kind == "attention") selective_saved_ += saved.extra.value;
  live += saved.extra.value;
  program_.forward_peak = std::max(program_.forward_peak, Bytes(live));
}

void Lowerer::backward_op(int index) {
  const Op& op = graph_.ops[static_cast<std::size_t>(index)];
  const LoweredOp& l = lowered(index);
  const Saved* unused = nullptr;
  (void)unused;
  double live = 0;
  // Bring every result's gradient to the form of the result.
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    ValueState& state = values_[op.outputs[k].value];
    const Sharding produced = output_sharding(l.rule, l.strategy, k).resolved();
    const TensorType type = micro_type(op.outputs[k]);
    // Gradients that lie alike are added locally, then travel once.
    std::vector<Sharding> forms;
    for (const auto& [version, sharding] : state.gradients) {
      if (std::find(forms.begin(), forms.end(), sharding) == forms.end()) forms.push_back(sharding);
    }
    for (const Sharding& form : forms) emit_reshard(program_.backward, type, form, produced, index);
    live += local_bytes(type, produced, stage_.mesh).value;
  }
  std::vector<TensorType> in, out;
  in.reserve(op.inputs.size());
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const Sharding wanted = input_sharding(l.rule, l.strategy, k);
    in.push_back(local_type(micro_type(op.inputs[k]), wanted, stage_.mesh));
  }
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    out.push_back(local_type(micro_type(op.outputs[k]),
                             output_sharding(l.rule, l.strategy, k), stage_.mesh));
  }
  const OpContext context{op.attrs, in, out};
  const Work work = work_of(*l.def, context);
  const Saved saved = saved_of(*l.def, context);
  // Operands that were kept in a smaller (sharded) form are gathered again.
  for (int k : saved.inputs) {
    const ValueId id = op.inputs[static_cast<std::size_t>(k)];
    if (graph_.value(id).kind != ValueKind::kActivation) continue;
    ValueState& state = values_[id.value];
    const Sharding wanted = input_sharding(l.rule, l.strategy, static_cast<std::size_t>(k));
    const Sharding& kept = state.versions[0].sharding;
    if (kept == wanted || bytes_of(id, kept) >= bytes_of(id, wanted)) continue;
    const bool again = std::find(regathered_.begin(), regathered_.end(),
                                 std::pair(id.value, wanted)) != regathered_.end();
    if (again) continue;
    regathered_.emplace_back(id.value, wanted);
    emit_reshard(program_.backward, micro_type(id), kept, wanted, index);
    live += bytes_of(id, wanted).value;
  }
  ring(program_.backward, index, Purpose::kContext, 2);
  if (work.kernel != KernelClass::kView) {
    program_.backward.push_back(compute(l, work, Purpose::kBackward, false, index));
  }
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const Value& value = graph_.value(op.inputs[k]);
    if (value.kind != ValueKind::kActivation || !is_floating(value.type.dtype)) continue;
    ValueState& state = values_[op.inputs[k].value];
    Sharding gradient = input_gradient_sharding(l.rule, l.strategy, k);
    if (l.strategy.ring) gradient.partial = 0;  // The ring returns whole gradients to their owners.
    state.gradients.emplace_back(0, gradient);
    live += in[k].bytes().value;
  }
  program_.backward_peak = std::max(program_.backward_peak, Bytes(live));
}

}  // namespace
}  // namespace meshwright
