// Replay of operators: the forward pass fixes the interval of every factor, the backward pass works
// on the same ones.
#include <fmt/format.h>

#include <algorithm>

#include "verify/operator_needs.h"
#include "verify/segment_replay.h"

namespace meshwright {
namespace {

bool has_factor(const RuleTensor& tensor, int factor) {
  for (const RuleDim& dim : tensor.dims) {
    if (std::find(dim.factors.begin(), dim.factors.end(), factor) != dim.factors.end()) return true;
  }
  return false;
}

}  // namespace

void SegmentReplay::fix_factors(const Rule& rule, const RuleTensor& tensor, std::int32_t b,
                                OpRun& run, bool scaled_dims, const char* role) {
  const Placement& p = place(b);
  const TensorType& type = context_.type(buffer(b).value);
  if (!p.flat.empty()) fail(fmt::format("{} is a flat piece", role), b);
  for (std::size_t d = 0; d < p.dims.size(); ++d) {
    const SpanId whole = spans_.whole(type.dims[d].size);
    if (tensor.opaque || d >= tensor.dims.size() || tensor.dims[d].factors.empty()) {
      if (!scaled_dims && p.dims[d] != whole) {
        fail(fmt::format("{} is needed whole along {}", role, type.dims[d].name), b, whole,
             p.dims[d]);
      }
      continue;
    }
    const RuleDim& dim = tensor.dims[d];
    if (dim.scaled != scaled_dims) continue;
    if (dim.scaled) {
      // Split as its factor is, at a size of its own.
      const auto f = static_cast<std::size_t>(dim.factors[0]);
      if (run.factors[f] == kNoSpan) continue;
      const std::int64_t size = rule.factors[f].size;
      if (spans_.proportional(run.factors[f], size, p.dims[d], type.dims[d].size)) continue;
      if (d < buffer(b).form.rank && buffer(b).form.dims[d] == run.lists[f]) continue;
      fail(fmt::format("{} is not split along {} as the operator is", role, type.dims[d].name), b);
    }
    scratch_sizes_.clear();
    for (int f : dim.factors) {
      scratch_sizes_.push_back(rule.factors[static_cast<std::size_t>(f)].size);
    }
    scratch_spans_.assign(dim.factors.size(), kNoSpan);
    if (!spans_.factor(p.dims[d], scratch_sizes_, scratch_spans_)) {
      fail(fmt::format("{}: what it holds along {} is no product of the operator's factors", role,
                       type.dims[d].name),
           b);
    }
    for (std::size_t i = 0; i < dim.factors.size(); ++i) {
      const auto f = static_cast<std::size_t>(dim.factors[i]);
      if (run.factors[f] == kNoSpan) {
        run.factors[f] = scratch_spans_[i];
        if (dim.factors.size() == 1 && d < buffer(b).form.rank) {
          run.lists[f] = buffer(b).form.dims[d];
        }
      } else if (run.factors[f] != scratch_spans_[i]) {
        fail(
            fmt::format("{} holds another part of {} than the rest of the operator", role,
                        rule.factors[f].label.empty() ? rule.factors[f].id : rule.factors[f].label),
            b, run.factors[f], scratch_spans_[i]);
      }
    }
  }
}

void SegmentReplay::check_halo(const Op& op, const Rule& rule, const OpRun& run, std::size_t k,
                               std::int32_t b) {
  const Halo& held = place(b).halo;
  Halo needed;
  for (std::size_t d = 0; d < rule.inputs[k].dims.size(); ++d) {
    const RuleDim& dim = rule.inputs[k].dims[d];
    if (dim.factors.size() != 1) continue;
    const auto f = static_cast<std::size_t>(dim.factors[0]);
    const Factor& factor = rule.factors[f];
    if (factor.kind != FactorKind::kHalo || spans_.axes(run.factors[f]) == 0) continue;
    std::vector<TensorType> inputs, outputs;
    for (ValueId id : op.inputs) inputs.push_back(context_.type(id));
    for (ValueId id : op.outputs) outputs.push_back(context_.type(id));
    const OpDef& def = find_op(op.kind);
    const auto widths =
        def.halo == nullptr ? std::nullopt : def.halo({op.attrs, inputs, outputs}, factor.id);
    const std::int64_t parts = spans_.mesh().size(axes_of_mask(spans_.axes(run.factors[f])));
    if (!widths || factor.size % parts != 0) {
      fail(fmt::format("split along {}, its windows do not end with the parts", factor.label), b);
    }
    if (widths->before == 0 && widths->after == 0) continue;
    needed = {static_cast<std::int8_t>(d), static_cast<std::int32_t>(widths->before),
              static_cast<std::int32_t>(widths->after)};
  }
  if (!(held == needed)) {
    fail(fmt::format("needs {} rows before its part and {} after, and has {} and {}", needed.before,
                     needed.after, held.before, held.after),
         b);
  }
}

// The tensor must hold exactly what the fixed factors say.
void SegmentReplay::check_tensor(const Rule& rule, const RuleTensor& tensor, std::int32_t b,
                                 const OpRun& run, const char* role) {
  OpRun copy = run;
  fix_factors(rule, tensor, b, copy, false, role);
  fix_factors(rule, tensor, b, copy, true, role);
  for (std::size_t f = 0; f < run.factors.size(); ++f) {
    if (run.factors[f] != kNoSpan || copy.factors[f] == kNoSpan) continue;
    if (spans_.axes(copy.factors[f]) != 0) {
      fail(fmt::format("{} is split along a factor of which no operand tells the part", role), b);
    }
  }
}

void SegmentReplay::compute_forward(const Instr& instr) {
  const Op& op = context_.graph.op(instr.op);
  const OpDef& def = find_op(op.kind);
  const Rule& rule = context_.tables.rule(instr.op.value, def, context_.samples);
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  if (in.size() != op.inputs.size()) fail("the operator has another number of operands");
  if (out.size() != op.outputs.size()) fail("the operator has another number of results");
  OpRun run;
  run.done = true;
  run.factors.assign(rule.factors.size(), kNoSpan);
  run.lists.resize(rule.factors.size());
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0) fail(fmt::format("operand {} is not given", k));
    const BufferState& s = read(in[k]);
    expect(in[k], BufferKind::kValue, op.inputs[k], "an operand");
    if (s.terms[0].open != 0) {
      fail(fmt::format("an operand on which a sum is due along {}",
                       axis_names(s.terms[0].open, spans_.mesh())),
           in[k]);
    }
    fix_factors(rule, rule.inputs[k], in[k], run, false, "an operand");
  }
  for (std::size_t k = 0; k < in.size(); ++k) {
    fix_factors(rule, rule.inputs[k], in[k], run, true, "an operand");
  }
  std::uint32_t summed = 0;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const Factor& factor = rule.factors[f];
    if (run.factors[f] == kNoSpan) run.factors[f] = spans_.whole(factor.size);
    const std::uint32_t axes = spans_.axes(run.factors[f]);
    if (axes == 0) continue;
    const std::string name = factor.label.empty() ? factor.id : factor.label;
    if (spans_.gather(run.factors[f], axes) != spans_.whole(factor.size)) {
      fail(fmt::format("the parts of {} along {} do not make up the whole", name,
                       axis_names(axes, spans_.mesh())));
    }
    // Every query needs all keys, but not all queries.
    const bool query = op.kind == "attention" && has_factor(rule.outputs[0], static_cast<int>(f));
    if (factor.kind == FactorKind::kFrozen && !query) {
      fail(fmt::format("{} may not be split, but is along {}", name,
                       axis_names(axes, spans_.mesh())));
    }
    if (factor.kind == FactorKind::kSum) {
      if ((summed & axes) != 0) {
        fail(fmt::format("{} cuts two summed factors at once: their products leave gaps",
                         axis_names(summed & axes, spans_.mesh())));
      }
      summed |= axes;
    }
  }
  for (std::size_t k = 0; k < in.size(); ++k) check_halo(op, rule, run, k, in[k]);
  for (std::size_t j = 0; j < out.size(); ++j) {
    if (out[j] < 0) continue;
    if (place(out[j]).halo.dim >= 0) fail("a result with rows of neighbours", out[j]);
    expect(out[j], BufferKind::kValue, op.outputs[j], "a result");
    for (std::size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].kind == FactorKind::kSum || spans_.axes(run.factors[f]) == 0) continue;
      if (!has_factor(rule.outputs[j], static_cast<int>(f))) {
        fail(fmt::format("split along {}, each device would have a result of its own",
                         rule.factors[f].label),
             out[j]);
      }
    }
    check_tensor(rule, rule.outputs[j], out[j], run, "a result");
    write(out[j], {{kValueTerm, summed}});
  }
  runs_[instr.op.value] = std::move(run);
}

// What the wanted gradients are computed from, besides the results' gradients.
std::string SegmentReplay::missing_operand(const Instr& instr, const Rule& rule) const {
  const Op& op = context_.graph.op(instr.op);
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  std::vector<TensorType> inputs, outputs;
  for (ValueId id : op.inputs) inputs.push_back(context_.type(id));
  for (ValueId id : op.outputs) outputs.push_back(context_.type(id));
  const OpContext types{op.attrs, inputs, outputs};
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (out[k] < 0) continue;
    const GradientNeeds needs = gradient_needs(context_.graph, op, rule, types, k);
    const auto lacks = [&](const char* what, std::size_t first, const std::vector<int>& positions,
                           const std::vector<ValueId>& values) -> std::string {
      for (int m : positions) {
        const auto position = static_cast<std::size_t>(m);
        if (in[first + position] >= 0) continue;
        return fmt::format("{} {} ({}) is needed for the gradient of operand {}", what, m,
                           context_.graph.value(values[position]).name, k);
      }
      return {};
    };
    std::string f = lacks("operand", op.outputs.size(), needs.operands, op.inputs);
    if (f.empty()) {
      f = lacks("result", op.outputs.size() + op.inputs.size(), needs.results, op.outputs);
    }
    if (!f.empty()) return f;
  }
  return {};
}

void SegmentReplay::compute_backward(const Instr& instr) {
  const Op& op = context_.graph.op(instr.op);
  const Rule& rule = context_.tables.rule(instr.op.value, find_op(op.kind), context_.samples);
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  const std::size_t results = op.outputs.size(), operands = op.inputs.size();
  if (in.size() != 2 * results + operands) {
    fail("a backward pass reads gradients of results, operands and results");
  }
  if (out.size() != operands) fail("a backward pass has one gradient per operand");
  const auto found = runs_.find(instr.op.value);
  if (found == runs_.end()) fail("runs backward before it ran forward");
  const OpRun& run = found->second;
  std::uint32_t split = 0;
  for (SpanId f : run.factors) split |= spans_.axes(f);

  // Axes along which the results' gradients are still parts of sums: the operator is linear in
  // them, so its results are parts of sums too, provided the devices are equal otherwise.
  std::uint32_t open = 0;
  bool first = true;
  for (std::size_t j = 0; j < results; ++j) {
    const ValueId id = op.outputs[j];
    const bool due = context_.uses.requires_gradient(id) && !owed(id).empty();
    if (in[j] < 0) {
      if (due) {
        fail(fmt::format("the gradient of its result {} is not given",
                         context_.graph.value(id).name));
      }
      continue;
    }
    const BufferState& s = read(in[j]);
    expect(in[j], BufferKind::kGradient, id, "a gradient of a result");
    check_tensor(rule, rule.outputs[j], in[j], run, "the gradient of a result");
    if (std::string f = incomplete(s.terms, id); !f.empty()) fail(f, in[j]);
    for (const Term& t : s.terms) {
      if (first) open = t.open;
      first = false;
      if (t.open != open || (t.open & split) != 0) {
        fail(fmt::format("a sum is due along {} on the gradient of {} in it",
                         axis_names(t.open, spans_.mesh()), term_text(t.source)),
             in[j]);
      }
    }
    if (s.terms.empty()) fail("an empty gradient", in[j]);
  }
  for (std::size_t k = 0; k < operands + results; ++k) {
    const std::int32_t b = in[results + k];
    if (b < 0) continue;
    const bool operand = k < operands;
    const BufferState& s = read(b);
    expect(b, BufferKind::kValue, operand ? op.inputs[k] : op.outputs[k - operands],
           operand ? "an operand" : "a result");
    if (s.terms[0].open != 0) fail("a saved value on which a sum is due", b);
    check_tensor(rule, operand ? rule.inputs[k] : rule.outputs[k - operands], b, run,
                 operand ? "an operand" : "a result");
    if (operand) check_halo(op, rule, run, k, b);
  }
  if (std::string f = missing_operand(instr, rule); !f.empty()) fail(f);
  for (std::size_t k = 0; k < operands; ++k) {
    if (out[k] < 0) continue;
    expect(out[k], BufferKind::kGradient, op.inputs[k], "a gradient");
    check_tensor(rule, rule.inputs[k], out[k], run, "the gradient of an operand");
    check_halo(op, rule, run, k, out[k]);
    std::uint32_t lacking = open;
    for (std::size_t f = 0; f < run.factors.size(); ++f) {
      if (has_factor(rule.inputs[k], static_cast<int>(f))) continue;
      const std::uint32_t axes = spans_.axes(run.factors[f]);
      if ((lacking & axes) != 0) {
        fail(fmt::format("{} cuts two factors at once that the gradient is summed over",
                         axis_names(lacking & axes, spans_.mesh())),
             out[k]);
      }
      lacking |= axes;
    }
    write(out[k], {{operand_term(instr.op.value, k), lacking}});
  }
}

}  // namespace meshwright
