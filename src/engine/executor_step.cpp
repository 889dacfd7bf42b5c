// The end of a step: gradients reduced and clipped, the optimizer, parameters gathered. All stages
// go through their lists in one order that every rank works out alike, so that ranks of several
// stages, and sums over stages, never wait for each other in a circle.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/executor_state.h"

namespace meshwright {

const Buffer& Executor::Impl::described(int s, int program, int buffer) const {
  const auto& own = p.segments[static_cast<std::size_t>(program)].buffers;
  const auto i = static_cast<std::size_t>(buffer);
  if (i < own.size()) return own[i];
  return p.stages[static_cast<std::size_t>(s)].buffers.at(program)[i - own.size()];
}

bool Executor::Impl::stands_for(int s, const StageProgram::Operand& operand,
                                const StageParameter& held) const {
  return operand.segment == held.program &&
         described(s, operand.segment, operand.buffer).value == held.shard->value;
}

void Executor::Impl::run_step_instr(int s, std::size_t index, double scale) {
  const StageProgram& program = p.stages[static_cast<std::size_t>(s)];
  const Instr& instr = program.step[index];
  const Mesh& mesh = stage(s).mesh;
  const auto& here = *coordinates[static_cast<std::size_t>(s)];
  const auto in = program.in(instr);
  const auto out = program.out(instr);
  std::vector<std::pair<StageParameter*, int>> targets;
  std::vector<CollectiveOperand> operands;
  for (auto& [key, held] : parameters) {
    if (key.first != s) continue;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!stands_for(s, out[i], held)) continue;
      const TensorType& whole = type(held.value);
      const Buffer& from = described(s, held.program, in[i].buffer);
      const Buffer& to = described(s, held.program, out[i].buffer);
      const at::Tensor& before = held.buffers.at(in[i].buffer);
      const LocalBuffer target = local_buffer(whole, to, mesh, here);
      switch (instr.kind) {
        case InstrKind::kCollective: {
          const auto [it, fresh] = step_collectives.try_emplace({s, index, i});
          if (fresh) it->second = local_collective(instr, false, whole, from, to, mesh, here);
          operands.push_back({&it->second, before, target.shape()});
          targets.emplace_back(&held, out[i].buffer);
          break;
        }
        case InstrKind::kSlice:
          held.buffers[out[i].buffer] =
              slice_buffer(before, local_buffer(whole, from, mesh, here), target);
          break;
        case InstrKind::kOptimizer:
          update(plan.training.optimizer, settings.optimizer, current_step, before, scale,
                 held.state);
          held.buffers[out[i].buffer] =
              held.state.master.to(settings.numerics.type_of(whole.dtype), false, true);
          break;
        default:
          break;
      }
    }
  }
  const std::vector<at::Tensor> results = run_collectives(comm, operands, 4);
  for (std::size_t i = 0; i < results.size(); ++i) {
    targets[i].first->buffers[targets[i].second] = results[i];
  }
}

void Executor::Impl::run_tie(int t, const std::vector<std::size_t>& at) {
  const Tie& tie = p.ties[static_cast<std::size_t>(t)];
  for (int s : tie.stages) {
    if (!holds(s)) continue;
    std::vector<int> ranks;
    for (int other : tie.stages) {
      ranks.push_back(
          device_at(stage(other).mesh, *coordinates[static_cast<std::size_t>(s)]).value);
    }
    std::vector<int> sorted = ranks;
    std::sort(sorted.begin(), sorted.end());
    MW_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
             "stages that share parameters lie on the same devices");
    const StageProgram& program = p.stages[static_cast<std::size_t>(s)];
    const Instr& instr = program.step[at[static_cast<std::size_t>(s)]];
    // All in one message.
    std::vector<at::Tensor*> gradients_here;
    std::vector<at::Tensor> flats;
    for (ValueId value : tie.values) {
      const auto it = parameters.find({s, value.value});
      if (it == parameters.end()) continue;
      for (const StageProgram::Operand& o : program.in(instr)) {
        if (!stands_for(s, o, it->second)) continue;
        gradients_here.push_back(&it->second.buffers.at(o.buffer));
        flats.push_back(gradients_here.back()->reshape({-1}));
      }
    }
    if (flats.empty()) continue;
    at::Tensor sum = at::cat(flats);
    all_reduce(comm, ranks, sum, false, 5);
    std::int64_t begin = 0;
    for (at::Tensor* g : gradients_here) {
      *g = sum.narrow(0, begin, g->numel()).clone().view(g->sizes());
      begin += g->numel();
    }
  }
}

// What this rank's gradients add to the square of the global norm: each element counts on one rank.
double Executor::Impl::square_of_gradients() const {
  double sum = 0;
  for (const auto& [key, held] : parameters) {
    if (held.state_buffer < 0 || first_stage.at(held.value.value) != key.first) continue;
    const StageProgram& program = p.stages[static_cast<std::size_t>(key.first)];
    for (const Instr& instr : program.step) {
      if (instr.kind != InstrKind::kOptimizer) continue;
      const auto in = program.in(instr);
      const auto out = program.out(instr);
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (!stands_for(key.first, out[i], held)) continue;
        const Buffer& b = described(key.first, held.program, in[i].buffer);
        if (!is_owner(b, stage(key.first).mesh,
                      *coordinates[static_cast<std::size_t>(key.first)])) {
          continue;
        }
        const at::Tensor g = held.buffers.at(in[i].buffer).to(at::kDouble);
        sum += g.mul(g).sum().item<double>();
      }
    }
  }
  return sum;
}

void Executor::Impl::run_steps(StepResult& result) {
  for (auto& [key, held] : parameters) {
    if (held.shard->accumulated < 0) continue;
    if (!held.accumulated.defined()) {
      const LocalBuffer sum = local_buffer(
          type(held.value), described(key.first, held.program, held.shard->accumulated),
          stage(key.first).mesh, *coordinates[static_cast<std::size_t>(key.first)]);
      held.accumulated = new_tensor(sum, settings.numerics.type_of(plan.training.gradient_dtype),
                                    settings.numerics);
    }
    held.buffers[held.shard->accumulated] = held.accumulated;
    held.buffers[held.shard->buffer] = held.rest;
  }
  std::vector<std::size_t> at(p.stages.size());
  // All gradients are summed before the first is used: their norm is of all.
  bool summing = true;
  double scale = 1;
  for (;;) {
    bool moved = false;
    for (std::size_t s = 0; s < p.stages.size(); ++s) {
      const std::vector<Instr>& step = p.stages[s].step;
      while (at[s] < step.size() && step[at[s]].tie < 0 &&
             !(summing && step[at[s]].kind == InstrKind::kOptimizer)) {
        if (holds(static_cast<int>(s))) {
          begin(
              {0, "step", static_cast<int>(s), -1, static_cast<int>(at[s]), &step[at[s]], nullptr});
          run_step_instr(static_cast<int>(s), at[s], scale);
          end();
        }
        ++at[s];
        moved = true;
      }
    }
    for (std::size_t t = 0; t < p.ties.size(); ++t) {
      const auto here = [&](int s) {
        const auto i = static_cast<std::size_t>(s);
        return at[i] < p.stages[i].step.size() &&
               p.stages[i].step[at[i]].tie == static_cast<int>(t);
      };
      const std::vector<int>& tied = p.ties[t].stages;
      if (!std::all_of(tied.begin(), tied.end(), here)) continue;
      begin(
          {0, "step", tied[0], -1, static_cast<int>(at[static_cast<std::size_t>(tied[0])]),
           &p.stages[static_cast<std::size_t>(tied[0])].step[at[static_cast<std::size_t>(tied[0])]],
           nullptr});
      run_tie(static_cast<int>(t), at);
      end();
      for (int s : tied) ++at[static_cast<std::size_t>(s)];
      moved = true;
    }
    if (moved) continue;
    if (!summing) break;
    summing = false;
    const bool clips = settings.clip_norm > 0;
    begin({0, "sum of the loss", -1, -1, -1, nullptr, nullptr});
    const std::vector<double> sums = sum_over_ranks({loss, clips ? square_of_gradients() : 0});
    end();
    result.loss = sums[0];
    result.gradient_norm = std::sqrt(sums[1]);
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) return;
    if (clips && result.gradient_norm > settings.clip_norm) {
      // As torch.nn.utils.clip_grad_norm_ does it.
      scale = settings.clip_norm / (result.gradient_norm + 1e-6);
    }
  }
  for (std::size_t s = 0; s < p.stages.size(); ++s) {
    MW_CHECK(at[s] == p.stages[s].step.size(), "the stages' steps wait for each other");
  }
  for (auto& [key, held] : parameters) {
    const auto rest = held.buffers.find(held.shard->buffer);
    if (rest != held.buffers.end()) held.rest = rest->second;
    held.buffers.clear();
    held.accumulated.reset();
  }
}

}  // namespace meshwright
