// The step at the end: gradients of parameters summed over replicas and stages, the optimizer, and
// parameters back at rest. Each parameter that a stage holds is handled once, through the slot (a
// segment program and its buffers) that stands for it: the first that the stage's chunks hold,
// before it any whose gradient flows.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "verify/program_replay.h"

namespace meshwright {
namespace {

struct StepState {
  bool alive = false;
  bool updated = false;  // A parameter after the optimizer.
  std::int32_t writer = -1;
  Terms terms;
  std::vector<int> ties;  // Sums over stages that it went through.
};

struct Slot {
  int segment = 0;
  std::size_t parameter = 0;
  friend bool operator<(const Slot& a, const Slot& b) {
    return std::pair(a.segment, a.parameter) < std::pair(b.segment, b.parameter);
  }
};

using BufferId = std::pair<int, int>;  // Segment program, buffer.

class Steps {
 public:
  Steps(const Program& program, const Plan& plan, const VerifyContext& context,
        const std::vector<std::shared_ptr<SpanTable>>& spans, VerifyCounts& counts)
      : program_(program), plan_(plan), context_(context), spans_(spans), counts_(counts) {}

  void run() {
    find_parameters();
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) run_stage(static_cast<int>(s));
    check_ties();
  }

 private:
  const SegmentProgram& segment(int i) const {
    return program_.segments[static_cast<std::size_t>(i)];
  }
  const ParameterShard& shard(const Slot& slot) const {
    return segment(slot.segment).parameters[slot.parameter];
  }
  const Buffer& buffer(int stage, const BufferId& id) const {
    const auto own = segment(id.first).buffers.size();
    const auto i = static_cast<std::size_t>(id.second);
    if (i < own) return segment(id.first).buffers[i];
    return program_.stages[static_cast<std::size_t>(stage)].buffers.at(id.first)[i - own];
  }
  Placement place(int stage, const BufferId& id) {
    const Buffer& b = buffer(stage, id);
    return placement_of(context_.type(b.value), b, *spans_[static_cast<std::size_t>(stage)]);
  }
  const std::string& name(ValueId id) const { return context_.graph.value(id).name; }
  void find_parameters();
  void run_stage(int stage);
  void run_instr(const Instr& instr);
  void tie(const Instr& instr, std::span<const StageProgram::Operand> in,
           std::span<const StageProgram::Operand> out);
  void check_stage();
  void check_ties();
  std::string instruction_text(int index) const;
  [[noreturn]] void fail(std::string message, const BufferId* id = nullptr);

  const Program& program_;
  const Plan& plan_;
  const VerifyContext& context_;
  const std::vector<std::shared_ptr<SpanTable>>& spans_;
  VerifyCounts& counts_;
  // Per stage: which slot stands for a parameter, and the other way round.
  std::vector<std::map<std::int32_t, Slot>> slot_of_;
  std::map<std::int32_t, std::vector<int>> holders_;
  // What each stage brought into each tie, by value.
  struct Part {
    int stage = 0;
    Placement place;
    Terms terms;
  };
  std::map<std::pair<int, std::int32_t>, std::vector<Part>> parts_;
  std::vector<std::vector<int>> tie_orders_;

  // Of the stage being replayed.
  int stage_ = 0;
  int index_ = -1;
  std::map<BufferId, StepState> states_;
  std::vector<std::vector<std::int32_t>> readers_;  // Per instruction: writers of what it reads.
};

std::string Steps::instruction_text(int index) const {
  const StageProgram& stage = program_.stages[static_cast<std::size_t>(stage_)];
  const Instr& i = stage.step[static_cast<std::size_t>(index)];
  std::string text = fmt::format("step[{}] of stage {}: ", index, stage_);
  if (i.kind == InstrKind::kCollective && i.tie >= 0) {
    text += fmt::format("sum over stages (tie {})", i.tie);
  } else if (i.kind == InstrKind::kCollective) {
    text +=
        fmt::format("{} along {}", collective_name(i.collective),
                    axis_names(i.group.mask(), spans_[static_cast<std::size_t>(stage_)]->mesh()));
  } else {
    text += instr_kind_name(i.kind);
  }
  return text;
}

void Steps::fail(std::string message, const BufferId* id) {
  CounterExample e;
  e.check = "step";
  e.message = std::move(message);
  const SpanTable& spans = *spans_[static_cast<std::size_t>(stage_)];
  e.rank = plan_.stages[static_cast<std::size_t>(stage_)].mesh.first_device;
  std::vector<std::int32_t> open = {index_};
  if (id != nullptr) {
    const Buffer& b = buffer(stage_, *id);
    e.tensor = name(b.value);
    e.region = region_text(context_.type(b.value), place(stage_, *id), spans,
                           std::vector<int>(spans.mesh().axes.size(), 0));
    open.push_back(states_[*id].writer);
  }
  e.instruction = index_ >= 0 ? instruction_text(index_) : fmt::format("step of stage {}", stage_);
  std::set<std::int32_t> reached;
  while (!open.empty()) {
    const std::int32_t i = open.back();
    open.pop_back();
    if (i < 0 || !reached.insert(i).second) continue;
    for (std::int32_t w : readers_[static_cast<std::size_t>(i)]) open.push_back(w);
  }
  for (std::int32_t i : reached) e.history.push_back(instruction_text(i));
  throw Disproof{std::move(e)};
}

void Steps::find_parameters() {
  // An operand of the standing segment that is the parameter: tells it in every copy.
  std::vector<std::vector<GraphUses::Use>> use_of(program_.segments.size());
  for (std::size_t i = 0; i < program_.segments.size(); ++i) {
    const SegmentProgram& p = program_.segments[i];
    const Segment& s = context_.segments[static_cast<std::size_t>(p.segment)];
    for (const ParameterShard& shard : p.parameters) {
      GraphUses::Use found{-1, 0};
      for (const GraphUses::Use& use : context_.uses.of(shard.value)) {
        if (use.op >= s.first_op && use.op < s.last_op && found.op < 0) found = use;
      }
      if (found.op < 0) {
        throw Error(fmt::format("parameter {} is listed in a segment that does not use it",
                                name(shard.value)),
                    s.name);
      }
      use_of[i].push_back(found);
    }
  }
  slot_of_.resize(plan_.stages.size());
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    stage_ = plan_.chunks[c].stage;
    auto& slots = slot_of_[static_cast<std::size_t>(stage_)];
    for (std::size_t i = 0; i < program_.chunks[c].segments.size(); ++i) {
      const int index = program_.chunks[c].segments[i];
      const SegmentProgram& p = segment(index);
      const Segment& here =
          context_.segments[static_cast<std::size_t>(program_.chunks[c].first_segment) + i];
      const Segment& standing = context_.segments[static_cast<std::size_t>(p.segment)];
      std::size_t listed = 0;
      for (std::size_t k = 0; k < p.parameters.size(); ++k) {
        const GraphUses::Use& use = use_of[static_cast<std::size_t>(index)][k];
        const ValueId id =
            context_.graph.ops[static_cast<std::size_t>(use.op - standing.first_op + here.first_op)]
                .inputs[static_cast<std::size_t>(use.operand)];
        const Slot slot{index, k};
        const ParameterShard& mine = p.parameters[k];
        ++listed;
        const auto [it, fresh] = slots.try_emplace(id.value, slot);
        if (fresh) {
          holders_[id.value].push_back(stage_);
          ++counts_.parameters;
          continue;
        }
        const ParameterShard& known = shard(it->second);
        const BufferId a{it->second.segment, known.buffer}, b{index, mine.buffer};
        if (!same_place(place(stage_, a), place(stage_, b))) {
          fail("two segments of the stage hold this parameter in different forms", &b);
        }
        if (known.accumulated < 0) {
          if (mine.accumulated >= 0) it->second = slot;
        } else if (mine.accumulated >= 0) {
          const BufferId ga{it->second.segment, known.accumulated}, gb{index, mine.accumulated};
          if (!same_place(place(stage_, ga), place(stage_, gb)) ||
              buffer(stage_, ga).form.partial != buffer(stage_, gb).form.partial) {
            fail("two segments of the stage add up its gradient in different forms", &gb);
          }
        }
      }
      // Parameters that operators use but the program does not list would never be updated.
      std::set<std::int32_t> used;
      for (int op = here.first_op; op < here.last_op; ++op) {
        for (ValueId id : context_.graph.ops[static_cast<std::size_t>(op)].inputs) {
          if (context_.graph.value(id).kind == ValueKind::kParameter) used.insert(id.value);
        }
      }
      for (std::int32_t id : used) {
        if (!slots.contains(id)) {
          fail(fmt::format("segment {} does not list its parameter {}", here.name,
                           name(ValueId(id))));
        }
      }
    }
  }
}

void Steps::tie(const Instr& instr, std::span<const StageProgram::Operand> in,
                std::span<const StageProgram::Operand> out) {
  if (instr.tie >= static_cast<int>(program_.ties.size())) {
    throw Error(fmt::format("tie {} does not exist", instr.tie), instruction_text(index_));
  }
  const Tie& tie = program_.ties[static_cast<std::size_t>(instr.tie)];
  if (instr.collective != CollectiveKind::kAllReduce || !instr.group.empty()) {
    fail("a sum over stages is an all_reduce over no axis");
  }
  if (std::find(tie.stages.begin(), tie.stages.end(), stage_) == tie.stages.end()) {
    fail("the stage does not belong to the tie");
  }
  tie_orders_.back().push_back(instr.tie);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const BufferId id{in[i].segment, in[i].buffer};
    if (!(in[i] == out[i])) fail("a sum over stages is taken in place", &id);
    StepState& s = states_[id];
    if (!s.alive || buffer(stage_, id).kind != BufferKind::kAccumulated) {
      fail("a sum over stages of what is no gradient", &id);
    }
    s.ties.push_back(instr.tie);
    s.writer = index_;
  }
  const auto& slots = slot_of_[static_cast<std::size_t>(stage_)];
  for (ValueId value : tie.values) {
    const auto slot = slots.find(value.value);
    if (slot == slots.end()) fail("a sum over stages of a parameter that this stage does not hold");
    for (const StageProgram::Operand& o : in) {
      const BufferId id{o.segment, o.buffer};
      if (o.segment != slot->second.segment) continue;
      if (buffer(stage_, id).value != shard(slot->second).value) continue;
      parts_[{instr.tie, value.value}].push_back({stage_, place(stage_, id), states_[id].terms});
    }
  }
}

void Steps::run_instr(const Instr& instr) {
  const StageProgram& stage = program_.stages[static_cast<std::size_t>(stage_)];
  SpanTable& spans = *spans_[static_cast<std::size_t>(stage_)];
  const auto in = stage.in(instr);
  const auto out = stage.out(instr);
  if (in.size() != out.size()) fail("an instruction of the step has as many results as operands");
  for (const StageProgram::Operand& o : in) {
    readers_.back().push_back(states_[{o.segment, o.buffer}].writer);
  }
  if (instr.kind == InstrKind::kCollective && instr.tie >= 0) return tie(instr, in, out);
  if (instr.kind == InstrKind::kCollective &&
      (instr.collective == CollectiveKind::kRing || instr.collective == CollectiveKind::kHalo)) {
    fail("rings and borders are for activations");
  }
  std::vector<std::pair<BufferId, StepState>> results;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const BufferId from{in[i].segment, in[i].buffer}, to{out[i].segment, out[i].buffer};
    const Buffer& source = buffer(stage_, from);
    const Buffer& target = buffer(stage_, to);
    StepState next = states_[from];
    if (!next.alive) fail("used before anything fills it", &from);
    if (from.first != to.first || source.value != target.value) {
      fail("the result is of another parameter than the operand", &to);
    }
    const Placement a = place(stage_, from), b = place(stage_, to);
    next.writer = index_;
    if (instr.kind == InstrKind::kOptimizer) {
      if (source.kind != BufferKind::kAccumulated || target.kind != BufferKind::kValue) {
        fail("the optimizer makes parameters of gradients", &to);
      }
      if (next.terms[0].open != 0) {
        fail(fmt::format("the optimizer reads a gradient on which a sum is due along {}",
                         axis_names(next.terms[0].open, spans.mesh())),
             &from);
      }
      if (!same_place(a, b)) fail("the gradient lies in another region than the parameter", &to);
      if (states_[to].updated) fail("the optimizer updates it twice", &to);
      next.updated = true;
      next.terms = {{kValueTerm, 0}};
    } else {
      if (source.kind != target.kind)
        fail("a gradient for a parameter, or a parameter for a gradient", &to);
      std::string fault;
      if (instr.kind == InstrKind::kSlice) {
        fault = apply_slice(a, b, spans);
      } else if (instr.kind == InstrKind::kCollective) {
        if (instr.group.empty()) fail("a collective over no axis", &to);
        fault = apply_collective(instr, a, states_[from].terms, b, spans, next.terms);
      } else {
        fail(fmt::format("{} is no instruction of a step", instr_kind_name(instr.kind)), &to);
      }
      if (!fault.empty()) fail(fault, &from);
      const std::uint32_t open = next.terms[0].open;
      if (open != target.form.partial) {
        fail(fmt::format("its form says that a sum is due along {}, but one is due along {}",
                         axis_names(target.form.partial, spans.mesh()),
                         axis_names(open, spans.mesh())),
             &to);
      }
      if ((open & (b.mask | b.flat.mask())) != 0 || (b.mask & b.flat.mask()) != 0) {
        fail("pieces leave gaps: an axis cuts it twice, or cuts and sums", &to);
      }
      if (target.kind == BufferKind::kValue && states_[to].updated && !next.updated) {
        fail("an updated parameter is overwritten by its old value", &to);
      }
    }
    results.emplace_back(to, std::move(next));
  }
  for (auto& [to, state] : results) states_[to] = std::move(state);
}

void Steps::check_stage() {
  index_ = -1;
  const StageProgram& stage = program_.stages[static_cast<std::size_t>(stage_)];
  std::map<Slot, int> stands_for;
  for (const auto& [value, slot] : slot_of_[static_cast<std::size_t>(stage_)]) {
    const ValueId id(value);
    ++stands_for[slot];
    if (!context_.uses.requires_gradient(id)) continue;
    const ParameterShard& p = shard(slot);
    const BufferId at{slot.segment, p.buffer};
    if (p.accumulated < 0) fail(fmt::format("{} is trained, but not on this stage", name(id)), &at);
    const StepState& s = states_[at];
    if (!s.updated) {
      fail(fmt::format("{} is not updated, or its new value does not come to rest", name(id)), &at);
    }
    const std::vector<int>& holders = holders_[value];
    std::vector<int> through;
    for (int t : s.ties) {
      const Tie& tie = program_.ties[static_cast<std::size_t>(t)];
      if (std::find(tie.values.begin(), tie.values.end(), id) != tie.values.end())
        through.push_back(t);
    }
    if (holders.size() == 1 && through.empty()) continue;
    if (holders.size() == 1) fail(fmt::format("{} is summed with other stages", name(id)), &at);
    if (through.size() != 1) {
      fail(fmt::format("{} stages hold {}, whose gradient is summed over them {} times",
                       holders.size(), name(id), through.size()),
           &at);
    }
    std::vector<int> tied = program_.ties[static_cast<std::size_t>(through[0])].stages;
    std::vector<int> all = holders;
    std::sort(tied.begin(), tied.end());
    std::sort(all.begin(), all.end());
    if (tied != all) fail(fmt::format("not all stages that hold {} are in its tie", name(id)), &at);
  }
  for (const auto& [segment_index, counts] : stage.copies) {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const Slot slot{segment_index, k};
      const auto it = stands_for.find(slot);
      if (counts[k] == (it == stands_for.end() ? 0 : it->second)) continue;
      const BufferId at{segment_index, shard(slot).buffer};
      fail(fmt::format("said to stand for {} parameters, but stands for {}", counts[k],
                       it == stands_for.end() ? 0 : it->second),
           &at);
    }
  }
}

void Steps::run_stage(int stage) {
  stage_ = stage;
  states_.clear();
  readers_.clear();
  tie_orders_.emplace_back();
  for (const auto& [value, slot] : slot_of_[static_cast<std::size_t>(stage)]) {
    const ParameterShard& p = shard(slot);
    StepState rest;
    rest.alive = true;
    rest.terms = {{kValueTerm, 0}};
    states_[{slot.segment, p.buffer}] = rest;
    if (p.accumulated < 0) continue;
    rest.terms = {{0, buffer(stage, {slot.segment, p.accumulated}).form.partial}};
    states_[{slot.segment, p.accumulated}] = rest;
  }
  const StageProgram& program = program_.stages[static_cast<std::size_t>(stage)];
  for (index_ = 0; index_ < static_cast<int>(program.step.size()); ++index_) {
    ++counts_.instructions;
    counts_.device_instructions +=
        plan_.stages[static_cast<std::size_t>(stage)].mesh.device_count();
    readers_.emplace_back();
    run_instr(program.step[static_cast<std::size_t>(index_)]);
  }
  check_stage();
}

// All stages of a tie bring the same region in the same state, in one order of ties.
void Steps::check_ties() {
  for (const auto& [key, parts] : parts_) {
    const Tie& tie = program_.ties[static_cast<std::size_t>(key.first)];
    const TensorType& type = context_.type(ValueId(key.second));
    const auto refuse = [&](std::string message, int stage) {
      CounterExample e;
      e.check = "step";
      e.message = std::move(message);
      e.instruction = fmt::format("tie {} on stage {}", key.first, stage);
      e.rank = plan_.stages[static_cast<std::size_t>(stage)].mesh.first_device;
      e.tensor = name(ValueId(key.second));
      throw Disproof{std::move(e)};
    };
    if (parts.size() != tie.stages.size()) {
      refuse(fmt::format("{} of {} stages take part in the sum", parts.size(), tie.stages.size()),
             parts[0].stage);
    }
    const SpanTable& first = *spans_[static_cast<std::size_t>(parts[0].stage)];
    for (const Part& p : parts) {
      const SpanTable& mine = *spans_[static_cast<std::size_t>(p.stage)];
      bool equal = p.terms == parts[0].terms && p.place.flat == parts[0].place.flat;
      if (&mine == &first) {
        equal &= same_place(p.place, parts[0].place);
      } else {
        const int count = mine.mesh().device_count();
        equal &= count == first.mesh().device_count();
        for (int i = 0; equal && i < count; ++i) {
          const auto a = mesh_coordinates(first.mesh(), i), b = mesh_coordinates(mine.mesh(), i);
          for (std::size_t d = 0; d < type.dims.size(); ++d) {
            equal &= first.at(parts[0].place.dims[d], a) == mine.at(p.place.dims[d], b);
          }
        }
      }
      if (!equal) refuse("the stages of a sum bring different regions, or parts of sums", p.stage);
    }
  }
  // Stages wait for each other in every tie: they must agree on an order.
  std::vector<std::size_t> at(tie_orders_.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < at.size(); ++s) {
      if (at[s] == tie_orders_[s].size()) continue;
      const int t = tie_orders_[s][at[s]];
      const std::vector<int>& stages = program_.ties[static_cast<std::size_t>(t)].stages;
      const bool all = std::all_of(stages.begin(), stages.end(), [&](int o) {
        const auto i = static_cast<std::size_t>(o);
        return at[i] < tie_orders_[i].size() && tie_orders_[i][at[i]] == t;
      });
      if (!all) continue;
      for (int o : stages) ++at[static_cast<std::size_t>(o)];
      moved = true;
    }
  }
  for (std::size_t s = 0; s < at.size(); ++s) {
    if (at[s] == tie_orders_[s].size()) continue;
    stage_ = static_cast<int>(s);
    index_ = -1;
    fail(fmt::format(
        "waits for ever in tie {}: stages take ties in different orders, or one lacks it",
        tie_orders_[s][at[s]]));
  }
}

}  // namespace

void ProgramReplay::replay_steps() { Steps(program_, plan_, context_, spans_, counts_).run(); }

}  // namespace meshwright
