// How operators are split under a stage, and how values and gradients lie between them.
#include <fmt/format.h>

#include "base/error.h"
#include "plan/segment_lowerer.h"

namespace meshwright {

// Which operands need rows of their neighbours.
void SegmentLowerer::find_halos(LoweredOp& l, int index, std::span<const TensorType> inputs,
                                std::span<const TensorType> outputs) {
  for (std::size_t f = 0; f < l.rule->factors.size(); ++f) {
    const Factor& factor = l.rule->factors[f];
    const int parts = stage_.mesh.size(l.strategy.factors[f]);
    if (factor.kind != FactorKind::kHalo || parts == 1) continue;
    const auto widths = l.def->halo == nullptr
                            ? std::nullopt
                            : l.def->halo({op_at(index).attrs, inputs, outputs}, factor.id);
    const std::int64_t own = factor.size / parts;
    if (!widths || factor.size % parts != 0 || own < std::max(widths->before, widths->after)) {
      throw Error(
          fmt::format("'{}' cannot be split into {} parts: windows reach over whole parts "
                      "or do not end with them",
                      factor.label, parts));
    }
    if (widths->before == 0 && widths->after == 0) continue;
    for (std::size_t k = 0; k < l.rule->inputs.size(); ++k) {
      const RuleTensor& tensor = l.rule->inputs[k];
      for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
        if (tensor.dims[d].factors != std::vector<int>{static_cast<int>(f)}) continue;
        l.halo.resize(l.rule->inputs.size());
        if (l.halo[k].dim >= 0) throw Error("only one dimension of an operand may have a halo");
        l.halo[k] = {static_cast<std::int8_t>(d), static_cast<std::int32_t>(widths->before),
                     static_cast<std::int32_t>(widths->after)};
      }
    }
  }
}

const LoweredOp& SegmentLowerer::lowered(int index) {
  const auto it = ops_.find(index);
  if (it != ops_.end()) return it->second;
  const Op& op = op_at(index);
  LoweredOp l;
  l.def = t_.defs[static_cast<std::size_t>(index)];
  // Whole at first, then cut to a device's part in place.
  l.inputs.reserve(op.inputs.size());
  for (ValueId id : op.inputs) l.inputs.push_back(micro_type(id));
  l.rule = &types_.rule(index, *l.def, samples_);
  l.strategy = strategy_for(*l.rule, l.inputs, stage_.roles, stage_.mesh, l.def->ring);
  if (t_.overrides != nullptr && !t_.overrides->rule_of_op.empty()) {
    const std::int32_t rule = t_.overrides->rule_of_op[static_cast<std::size_t>(index)];
    if (rule >= 0) {
      try {
        const Strategy own =
            overridden(l.strategy, *l.rule, t_.overrides->rules[static_cast<std::size_t>(rule)],
                       stage_.roles, stage_.mesh);
        std::vector<TensorType> results;
        for (ValueId id : op.outputs) results.push_back(micro_type(id));
        check_strategy(own, *l.rule, l.inputs, results, stage_.mesh);
        LoweredOp halos = l;
        halos.strategy = own;
        find_halos(halos, index, l.inputs, results);
        l.strategy = own;
        l.halo = std::move(halos.halo);
      } catch (const Error& e) {
        // Other stages' operators are asked about too, how their values would lie here.
        if (index >= segment_.first_op && index < segment_.last_op)
          throw e.within(fmt::format("operator '{}'", op.name));
      }
    }
  }
  l.in.reserve(op.inputs.size());
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    l.in.push_back(input_sharding(*l.rule, l.strategy, k));
    make_local(l.inputs[k], l.in[k], stage_.mesh);
  }
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    l.out.push_back(output_sharding(*l.rule, l.strategy, k));
    l.outputs.push_back(micro_type(op.outputs[k]));
    make_local(l.outputs[k], l.out[k], stage_.mesh);
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
  const auto& uses = t_.uses[id.index()];
  const auto first_wanted = [&] {
    return wanted(uses[0].op, static_cast<std::size_t>(uses[0].operand));
  };
  if (!value.producer.valid()) return uses.empty() ? Sharding{} : first_wanted();
  const LoweredOp& producer = lowered(value.producer.value);
  const Sharding& produced = producer.out[static_cast<std::size_t>(t_.position[id.index()])];
  if (produced.partial == 0) return produced;
  return uses.empty() ? produced.resolved() : first_wanted();
}

std::uint32_t SegmentLowerer::inherited_partial(int op) {
  std::uint32_t mask = 0;
  if (t_.of_parameters_only[static_cast<std::size_t>(op)]) {
    for (ValueId id : op_at(op).outputs) {
      if (has_gradient(id)) mask |= gradient_resting(id).partial;
    }
  }
  return mask;
}

// The gradient of an operand as one device computes it.
Sharding SegmentLowerer::operand_gradient(int op, std::size_t operand) {
  const LoweredOp& l = lowered(op);
  Sharding form = input_gradient_sharding(*l.rule, l.strategy, operand);
  form.partial |= inherited_partial(op);
  return form;
}

// What is made of parameters only is the same for every sample: its gradient may stay a partial sum
// over the replicas where all consumers leave one, since the parameters it came from are summed
// over them anyway.
Sharding SegmentLowerer::gradient_resting(ValueId id) {
  const OpId producer = graph_.value(id).producer;
  if (!producer.valid() || !t_.of_parameters_only[producer.index()]) return resting(id).resolved();
  if (std::find(t_.whole_gradients.begin(), t_.whole_gradients.end(), id) !=
      t_.whole_gradients.end()) {
    return resting(id).resolved();
  }
  const auto it = gradient_resting_.find(id.value);
  if (it != gradient_resting_.end()) return it->second;
  std::uint32_t every = stage_.roles.data.mask() | stage_.roles.context.mask();
  for (const GraphTables::Use& use : t_.uses[id.index()]) {
    every &= operand_gradient(use.op, static_cast<std::size_t>(use.operand)).partial;
  }
  Sharding form = resting(id).resolved();
  if (t_.uses[id.index()].empty()) every = 0;
  form.partial = every;
  return gradient_resting_.emplace(id.value, form).first->second;
}

std::uint32_t SegmentLowerer::parameter_partial(ValueId id) {
  std::uint32_t every = ~0u;
  for (const GraphTables::Use& use : t_.uses[id.index()]) {
    const Op& op = op_at(use.op);
    const bool reached = std::any_of(op.outputs.begin(), op.outputs.end(),
                                     [&](ValueId out) { return has_gradient(out); });
    if (!reached) continue;
    every &= operand_gradient(use.op, static_cast<std::size_t>(use.operand)).partial;
  }
  return every == ~0u ? 0 : every;
}

// Views share their operand's memory.
ValueId SegmentLowerer::storage(ValueId id) {
  for (;;) {
    const Value& value = graph_.value(id);
    if (!value.producer.valid()) return id;
    const Op& op = graph_.op(value.producer);
    if (op.inputs.empty() || !t_.defs[value.producer.index()]->view) return id;
    id = op.inputs[0];
  }
}

// The form of an operand of ring attention once the ring has brought all keys.
Sharding SegmentLowerer::gathered_keys(const LoweredOp& l, std::size_t operand,
                                       const Sharding& form) const {
  Sharding whole = form;
  const RuleTensor& tensor = l.rule->inputs[operand];
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    for (int f : tensor.dims[d].factors) {
      const Factor& factor = l.rule->factors[static_cast<std::size_t>(f)];
      const bool in_result = std::any_of(
          l.rule->outputs[0].dims.begin(), l.rule->outputs[0].dims.end(), [&](const RuleDim& dim) {
            return std::find(dim.factors.begin(), dim.factors.end(), f) != dim.factors.end();
          });
      if (factor.kind == FactorKind::kFrozen && !in_result) whole.dims[d] = {};
    }
  }
  return whole;
}

}  // namespace meshwright
