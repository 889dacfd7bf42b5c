// The step of every stage, with sums over stages that share parameters, and the comparison.
#include <fmt/format.h>

#include <algorithm>

#include "verify/machine.h"

namespace meshwright {

bool Machine::run_steps() {
  // Which segment's buffers stand for each parameter that a stage holds.
  struct Held {
    ValueId value;
    int program = 0;
    const ParameterShard* shard = nullptr;
    std::map<int, Spread> buffers;
  };
  std::vector<std::map<std::int32_t, Held>> stages(e_.plan.stages.size());
  for (std::size_t c = 0; c < p_.chunks.size(); ++c) {
    const ChunkProgram& chunk = p_.chunks[c];
    auto& held = stages[static_cast<std::size_t>(chunk.stage)];
    for (std::size_t i = 0; i < chunk.segments.size(); ++i) {
      const int program = chunk.segments[i];
      const auto& name = names(program, chunk.first_segment + static_cast<int>(i));
      for (const ParameterShard& s : p_.segments[static_cast<std::size_t>(program)].parameters) {
        const ValueId id = name.at(s.value.value);
        const auto [it, fresh] = held.try_emplace(id.value, Held{id, program, &s, {}});
        if (!fresh && it->second.shard->accumulated < 0 && s.accumulated >= 0) {
          it->second = {id, program, &s, {}};
        }
      }
    }
  }
  const auto described = [&](int stage, int program, int b) -> const Buffer& {
    const auto& own = p_.segments[static_cast<std::size_t>(program)].buffers;
    const auto i = static_cast<std::size_t>(b);
    if (i < own.size()) return own[i];
    return p_.stages[static_cast<std::size_t>(stage)].buffers.at(program)[i - own.size()];
  };
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (auto& [id, held] : stages[s]) {
      const int stage = static_cast<int>(s);
      Spread rest = make(stage, described(stage, held.program, held.shard->buffer), held.value);
      fill(rest, [&, v = held.value](std::int64_t k) { return e_.given(v, 0, k); });
      held.buffers[held.shard->buffer] = std::move(rest);
      if (held.shard->accumulated >= 0) {
        const Buffer& b = described(stage, held.program, held.shard->accumulated);
        Spread mine = make(stage, b, held.value);
        const Spread& sum = accumulated(stage, held.value, b);
        if (same_regions(sum, mine)) mine.data = sum.data;
        held.buffers[held.shard->accumulated] = std::move(mine);
      }
    }
  }
  const auto run_instr = [&](int stage, const Instr& instr, Held& held) {
    const StageProgram& program = p_.stages[static_cast<std::size_t>(stage)];
    const auto in = program.in(instr);
    const auto out = program.out(instr);
    const auto at = [&](int b) -> Spread& {
      const auto it = held.buffers.find(b);
      if (it != held.buffers.end()) return it->second;
      return held.buffers[b] = make(stage, described(stage, held.program, b), held.value);
    };
    for (std::size_t i = 0; i < std::min(in.size(), out.size()); ++i) {
      if (out[i].segment != held.program || in[i].segment != held.program) continue;
      if (described(stage, held.program, out[i].buffer).value != held.shard->value) continue;
      const Spread before = at(in[i].buffer);
      Spread& target = at(out[i].buffer);
      switch (instr.kind) {
        case InstrKind::kCollective:
          communicate(stage, instr, true, before, target);
          break;
        case InstrKind::kSlice:
          slice(before, target);
          break;
        case InstrKind::kOptimizer: {
          // The optimizer has its own copy of the parameter, which goes on from step to step.
          Spread old = make(stage, described(stage, held.program, out[i].buffer), held.value);
          fill(old, [&](std::int64_t k) { return e_.given(held.value, 0, k); });
          const bool again = held.buffers.contains(-1 - out[i].buffer);
          if (again) old = held.buffers[-1 - out[i].buffer];
          for (std::size_t d = 0; d < target.data.size(); ++d) {
            for (std::size_t k = 0; k < target.data[d].size(); ++k) {
              const bool fits = target.data[d].size() == before.data[d].size();
              target.data[d][k] =
                  fits ? Evaluation::updated(old.data[d][k], before.data[d][k]) : rubbish();
            }
          }
          held.buffers[-1 - out[i].buffer] = target;
          break;
        }
        default:
          break;
      }
    }
  };
  std::vector<std::size_t> at(stages.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& step = p_.stages[s].step;
      while (at[s] < step.size() && step[at[s]].tie < 0) {
        for (auto& [id, held] : stages[s]) run_instr(static_cast<int>(s), step[at[s]], held);
        ++at[s];
        moved = true;
      }
    }
    for (std::size_t t = 0; t < p_.ties.size(); ++t) {
      const Tie& tie = p_.ties[t];
      const auto here = [&](int s) {
        const auto i = static_cast<std::size_t>(s);
        return at[i] < p_.stages[i].step.size() &&
               p_.stages[i].step[at[i]].tie == static_cast<int>(t);
      };
      if (!std::all_of(tie.stages.begin(), tie.stages.end(), here)) continue;
      for (ValueId value : tie.values) {
        std::vector<Spread*> parts;
        for (int s : tie.stages) {
          const auto i = static_cast<std::size_t>(s);
          const auto it = stages[i].find(value.value);
          if (it == stages[i].end()) continue;
          for (const StageProgram::Operand& o : p_.stages[i].in(p_.stages[i].step[at[i]])) {
            if (o.segment != it->second.program) continue;
            if (described(s, o.segment, o.buffer).value != it->second.shard->value) continue;
            const auto found = it->second.buffers.find(o.buffer);
            if (found != it->second.buffers.end()) parts.push_back(&found->second);
          }
        }
        if (parts.empty()) continue;
        Spread sum = *parts[0];
        bool fits = parts.size() == tie.stages.size();
        for (std::size_t i = 1; i < parts.size(); ++i) {
          fits &= parts[i]->data.size() == sum.data.size() && add(*parts[i], sum);
        }
        for (Spread* p : parts) {
          if (fits) {
            p->data = sum.data;
          } else {
            spoil(*p);
          }
        }
      }
      for (int s : tie.stages) ++at[static_cast<std::size_t>(s)];
      moved = true;
    }
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (at[s] < p_.stages[s].step.size()) return false;
    for (auto& [id, held] : stages[s]) {
      parameters_[{static_cast<int>(s), id}] = held.buffers[held.shard->buffer];
    }
  }
  return true;
}

std::string Machine::compare() {
  for (const auto& [key, after] : parameters_) {
    const auto it = e_.parameters.find(key.second);
    if (it == e_.parameters.end()) continue;
    for (std::size_t d = 0; d < after.data.size(); ++d) {
      const Region& r = (*after.regions)[d];
      for (std::size_t k = 0; k < r.elements.size(); ++k) {
        if (after.data[d][k] == it->second[static_cast<std::size_t>(r.elements[k])]) continue;
        return fmt::format("parameter {} on device {} of stage {}",
                           e_.graph.value(ValueId(key.second)).name, d, key.first);
      }
    }
  }
  for (const auto& [key, whole] : e_.losses) {
    bool found = false;
    for (const auto& [where, loss] : losses_) {
      if (std::get<1>(where) != key.first || std::get<2>(where) != key.second) continue;
      found = true;
      for (std::size_t d = 0; d < loss.data.size(); ++d) {
        const Region& r = (*loss.regions)[d];
        for (std::size_t k = 0; k < r.elements.size(); ++k) {
          if (loss.data[d][k] == whole[static_cast<std::size_t>(r.elements[k])]) continue;
          return fmt::format("result {} of micro-batch {}", e_.graph.value(ValueId(key.first)).name,
                             key.second);
        }
      }
    }
    if (!found) return fmt::format("no result {}", e_.graph.value(ValueId(key.first)).name);
  }
  return {};
}

}  // namespace meshwright
