// Passes: the lists of a chunk's segments for one micro-batch.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "engine/executor_state.h"

namespace meshwright {
namespace {

at::Tensor& slot(SegmentRun& run, std::int32_t b) {
  return run.buffers[static_cast<std::size_t>(b)];
}

bool can_have_gradient(const at::Tensor& t) {
  return t.defined() && at::isFloatingType(t.scalar_type());
}

}  // namespace

std::vector<at::Tensor> Executor::Impl::compute(const PreparedInstr& i, const Op& op,
                                                std::span<const at::Tensor> operands,
                                                int micro_batch) {
  KernelServices services;
  services.draw = {draw_key_of(op), first_sample(micro_batch)};
  if (i.group.size() > 1) {
    services.group_reduce = [&](at::Tensor& t, bool maximum) {
      all_reduce(comm, i.group, t, maximum, 2);
    };
  }
  try {
    return call_kernel(i.kernel, operands, i.result_types, settings.numerics, services);
  } catch (const InternalError& e) {
    throw InternalError(fmt::format("{} ({}): {}", op.name, op.kind, e.what()));
  }
}

void Executor::Impl::forward(const PreparedInstr& i, const PreparedSegment& s, const Op& op,
                             int micro_batch, SegmentRun& run) {
  const auto in = s.program->in(*i.instr);
  const auto out = s.program->out(*i.instr);
  std::vector<at::Tensor> operands;
  for (std::int32_t b : in) {
    at::Tensor t = slot(run, b);
    // Leaves of a record of its own.
    if (i.keep && can_have_gradient(t)) t = t.detach().set_requires_grad(true);
    operands.push_back(t);
  }
  at::AutoGradMode mode(i.keep);
  std::vector<at::Tensor> results = compute(i, op, operands, micro_batch);
  for (std::size_t j = 0; j < out.size(); ++j) {
    const std::vector<std::int64_t> shape = s.buffers[static_cast<std::size_t>(out[j])].shape();
    if (results[j].sizes() != at::IntArrayRef(shape)) {
      throw InternalError(
          fmt::format("{} ({}): result {} has another shape than its buffer", op.name, op.kind, j));
    }
    slot(run, out[j]) = results[j].detach();
  }
  if (i.keep) run.records[i.instr->op.value] = {std::move(operands), std::move(results)};
}

void Executor::Impl::adjoint(const PreparedInstr& i, const PreparedSegment& s, const Op& op,
                             int micro_batch, SegmentRun& run) {
  const auto in = s.program->in(*i.instr);
  const auto out = s.program->out(*i.instr);
  const std::size_t results = op.outputs.size();
  const auto put = [&](std::int32_t b, const at::Tensor& gradient) {
    const auto i_b = static_cast<std::size_t>(b);
    slot(run, b) = gradient.defined()
                       ? gradient
                       : new_tensor(s.buffers[i_b], settings.numerics.type_of(s.types[i_b]),
                                    settings.numerics);
  };
  if (i.direct) {
    std::vector<at::Tensor> operands;
    for (std::int32_t b : in) operands.push_back(b < 0 ? at::Tensor() : slot(run, b));
    const std::vector<at::Tensor> found = compute(i, op, operands, micro_batch);
    for (std::size_t k = 0; k < out.size(); ++k) {
      if (out[k] >= 0) put(out[k], found[k]);
    }
    return;
  }
  Record rerun;
  if (i.rerun) {
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const std::int32_t operand = in[results + k];
      const auto f = static_cast<std::size_t>(i.forward_in[k]);
      // What is not given is not needed: any numbers of its shape serve.
      at::Tensor t = operand >= 0 ? slot(run, operand)
                                  : new_tensor(s.buffers[f], settings.numerics.type_of(s.types[f]),
                                               settings.numerics);
      if (can_have_gradient(t)) t = t.detach().set_requires_grad(true);
      rerun.inputs.push_back(t);
    }
    at::AutoGradMode mode(true);
    rerun.outputs = compute(i, op, rerun.inputs, micro_batch);
  }
  const Record& record = i.rerun ? rerun : run.records.at(i.instr->op.value);
  torch::autograd::variable_list outputs, inputs, given;
  for (std::size_t j = 0; j < results; ++j) {
    if (in[j] < 0 || !record.outputs[j].requires_grad()) continue;
    outputs.push_back(record.outputs[j]);
    given.push_back(slot(run, in[j]).to(record.outputs[j].scalar_type()));
  }
  std::vector<std::int32_t> wanted;
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (out[k] < 0) continue;
    wanted.push_back(out[k]);
    inputs.push_back(record.inputs[k]);
  }
  torch::autograd::variable_list found(inputs.size());
  if (!outputs.empty() && !inputs.empty()) {
    found = torch::autograd::grad(outputs, inputs, given, !i.rerun && !i.last, false, true);
  }
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    put(wanted[k], found[k].defined() ? found[k].detach() : found[k]);
  }
  if (i.last) run.records.erase(i.instr->op.value);
}

StageParameter& Executor::Impl::parameter(int s, ValueId id) {
  return parameters.at({s, id.value});
}

at::Tensor Executor::Impl::take_value(const Key& key, const LocalBuffer& form) {
  const auto it = values.find(key);
  if (it != values.end()) {
    for (const auto& [have, tensor] : it->second.forms) {
      if (!(have == form)) continue;
      const at::Tensor found = tensor;
      const auto [stage_index, rep, id, micro] = key;
      if (++it->second.uses >= uses.at({stage_index, rep, id})) values.erase(it);
      return found;
    }
  }
  throw InternalError(fmt::format("value {} is not there in the form that is read",
                                  graph.value(ValueId(std::get<2>(key))).name));
}

void Executor::Impl::add_gradient(const Key& key, const at::Tensor& gradient) {
  at::Tensor& sum = gradients[key];
  sum = sum.defined() ? sum.add(gradient) : gradient;
}

void Executor::Impl::add_losses(int c, std::size_t position, int m) {
  const PreparedSegment& s = prepared(chunk(c).segments[position], chunk(c).stage);
  for (const auto& [value, held] : latest_losses) {
    const auto& [b, data] = held;
    const ValueId id(value);
    const Buffer& described = s.program->buffers[static_cast<std::size_t>(b)];
    const int s_index = chunk(c).stage;
    if (!is_owner(described, stage(s_index).mesh,
                  *coordinates[static_cast<std::size_t>(s_index)])) {
      continue;
    }
    Numerics precise = settings.numerics;
    precise.compute = precise.precise = at::kDouble;
    const at::Tensor weights = loss_weights(
        feeds, id, type(id), s.buffers[static_cast<std::size_t>(b)], first_sample(m), precise);
    loss += data.to(at::kDouble).mul(weights).sum().item<double>();
  }
  latest_losses.clear();
}

void Executor::Impl::begin_segment(int c, std::size_t position, int m, SegmentRun& run) {
  const PreparedSegment& s = prepared(chunk(c).segments[position], chunk(c).stage);
  const SegmentProgram& program = *s.program;
  run.buffers.assign(program.buffers.size(), {});
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& described = program.buffers[b];
    const ValueId id = actual(c, position, described.value);
    const ValueKind kind = graph.value(id).kind;
    if (described.kind != BufferKind::kValue ||
        (kind != ValueKind::kInput && kind != ValueKind::kBuffer)) {
      continue;
    }
    run.buffers[b] = fed_tensor(feeds, id, type(id), s.buffers[b], current_step, first_sample(m),
                                settings.numerics);
  }
  for (std::int32_t b : program.arguments) {
    const ValueId id = actual(c, position, program.buffers[static_cast<std::size_t>(b)].value);
    const ValueKind kind = graph.value(id).kind;
    if (kind == ValueKind::kParameter) {
      slot(run, b) = parameter(chunk(c).stage, id).rest;
    } else if (kind == ValueKind::kActivation) {
      slot(run, b) = take_value({chunk(c).stage, replica(c), id.value, m},
                                s.buffers[static_cast<std::size_t>(b)]);
    }
  }
}

void Executor::Impl::run_list(ListKind list, int c, std::size_t position, int m, SegmentRun& run) {
  const int s_index = chunk(c).stage;
  const PreparedSegment& s = prepared(chunk(c).segments[position], s_index);
  const SegmentProgram& program = *s.program;
  const int shift = segments[static_cast<std::size_t>(chunk(c).first_segment) + position].first_op -
                    segments[static_cast<std::size_t>(program.segment)].first_op;
  constexpr const char* kNames[] = {"forward", "backward", "weight"};
  int number = 0;
  for (const PreparedInstr& i : s.lists[list]) {
    const Instr& instr = *i.instr;
    const Op* op =
        instr.op.valid() ? &graph.ops[static_cast<std::size_t>(instr.op.value + shift)] : nullptr;
    begin({0, kNames[list], c, m, number++, &instr, op != nullptr ? &op->name : nullptr});
    const auto in = program.in(instr);
    const auto out = program.out(instr);
    switch (instr.kind) {
      case InstrKind::kCompute:
        if (op == nullptr) break;
        if (i.adjoint) {
          adjoint(i, s, *op, m, run);
        } else {
          forward(i, s, *op, m, run);
        }
        break;
      case InstrKind::kCollective: {
        std::vector<CollectiveOperand> operands;
        for (std::size_t k = 0; k < in.size(); ++k) {
          operands.push_back({&i.collectives[k], slot(run, in[k]),
                              s.buffers[static_cast<std::size_t>(out[k])].shape()});
        }
        const std::vector<at::Tensor> results = run_collectives(comm, operands, 3);
        for (std::size_t k = 0; k < out.size(); ++k) slot(run, out[k]) = results[k];
        break;
      }
      case InstrKind::kSlice:
        for (std::size_t k = 0; k < in.size(); ++k) {
          const LocalBuffer& from = s.buffers[static_cast<std::size_t>(in[k])];
          const LocalBuffer& to = s.buffers[static_cast<std::size_t>(out[k])];
          slot(run, out[k]) = slice_buffer(slot(run, in[k]), from, to);
        }
        break;
      case InstrKind::kAdd: {
        at::Tensor sum = slot(run, in[0]);
        for (std::size_t k = 1; k < in.size(); ++k) sum = sum.add(slot(run, in[k]));
        slot(run, out[0]) = sum;
        break;
      }
      case InstrKind::kAccumulate:
        for (std::size_t k = 0; k < in.size(); ++k) {
          const ValueId id =
              actual(c, position, program.buffers[static_cast<std::size_t>(out[k])].value);
          at::Tensor& sum = parameter(s_index, id).accumulated;
          const at::Tensor gradient =
              slot(run, in[k]).to(settings.numerics.type_of(plan.training.gradient_dtype));
          sum = sum.defined() ? sum.add_(gradient) : gradient.clone();
        }
        break;
      case InstrKind::kFree:
        for (std::int32_t b : in) slot(run, b).reset();
        break;
      case InstrKind::kOptimizer:
        break;
    }
    for (std::int32_t b : out) {
      if (list != kForwardList || b < 0) continue;
      const Buffer& described = program.buffers[static_cast<std::size_t>(b)];
      if (described.kind != BufferKind::kValue) continue;
      const ValueId id = actual(c, position, described.value);
      if (losses[id.index()]) latest_losses[id.value] = {b, slot(run, b)};
    }
    end();
  }
}

void Executor::Impl::pass(Phase phase, int c, int m) {
  const ChunkProgram& chunk_program = chunk(c);
  const int s_index = chunk_program.stage;
  const std::size_t count = chunk_program.segments.size();
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t i = phase == Phase::kForward ? n : count - 1 - n;
    const PreparedSegment& s = prepared(chunk_program.segments[i], s_index);
    const SegmentProgram& program = *s.program;
    SegmentRun& run = runs[{c, i, m}];
    const auto key_of = [&](std::int32_t b) -> Key {
      const ValueId id = actual(c, i, program.buffers[static_cast<std::size_t>(b)].value);
      return {s_index, replica(c), id.value, m};
    };
    if (phase == Phase::kForward) {
      begin_segment(c, i, m, run);
      run_list(kForwardList, c, i, m, run);
      for (std::int32_t b : program.results) {
        const Key key = key_of(b);
        if (!uses.contains({s_index, replica(c), std::get<2>(key)})) continue;
        values[key].forms.emplace_back(s.buffers[static_cast<std::size_t>(b)], slot(run, b));
      }
      add_losses(c, i, m);
      if (!chunk_program.backward) runs.erase({c, i, m});
      continue;
    }
    if (phase == Phase::kBackward) {
      for (std::int32_t b : program.gradient_arguments) {
        const Key key = key_of(b);
        const ValueId id(std::get<2>(key));
        const LocalBuffer& form = s.buffers[static_cast<std::size_t>(b)];
        if (losses[id.index()]) {
          slot(run, b) =
              loss_weights(feeds, id, type(id), form, first_sample(m), settings.numerics);
          continue;
        }
        const auto it = gradients.find(key);
        if (it == gradients.end()) {
          throw InternalError(fmt::format("no gradient of {} has come", graph.value(id).name));
        }
        slot(run, b) = it->second;
        gradients.erase(it);
      }
      run_list(kBackwardList, c, i, m, run);
      for (std::int32_t b : program.gradient_results) add_gradient(key_of(b), slot(run, b));
      if (program.weight.empty()) runs.erase({c, i, m});
      continue;
    }
    run_list(kWeightList, c, i, m, run);
    runs.erase({c, i, m});
  }
}

}  // namespace meshwright
