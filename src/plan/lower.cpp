#include "plan/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "mesh/exchange.h"
#include "plan/lanes.h"
#include "plan/schedule.h"
#include "plan/segment_lowerer.h"

namespace meshwright {
namespace {

bool alike(const Stage& a, const Stage& b) {
  return a.roles == b.roles && a.mesh.axes == b.mesh.axes && a.recompute == b.recompute &&
         a.state == b.state && a.state_axes == b.state_axes &&
         a.expert_state_axes == b.expert_state_axes;
}

bool same_shape(const Mesh& a, const Mesh& b) {
  return std::equal(a.axes.begin(), a.axes.end(), b.axes.begin(), b.axes.end(),
                    [](const MeshAxis& x, const MeshAxis& y) { return x.size == y.size; });
}

class PlanLowerer {
 public:
  PlanLowerer(const Plan& plan, SegmentLowering& lowering, const std::vector<Segment>& segments)
      : plan_(plan),
        lowering_(lowering),
        t_(lowering.tables()),
        segments_(segments),
        samples_(plan.global_batch / plan.micro_batches),
        split_(find_schedule(plan.schedule).splits_backward) {}

  Program run();

 private:
  // Stages with equal roles share segment programs; meshes of equal shape differ only in their
  // first device.
  void find_whole_gradients();
  void find_configurations();
  int program_of(int segment, std::size_t stage);
  bool fits(const SegmentProgram& program, int segment, SegmentLowerer& probe);
  std::vector<std::int32_t> key_of(int segment, int configuration) const;
  void add_transfers();
  void add_transfer(int from, int to, ValueId id, bool gradient);
  void add_steps();
  void tie_parameters();
  SegmentLowerer& probe(int stage) {
    return probes_.at(static_cast<std::size_t>(configuration_[static_cast<std::size_t>(stage)]));
  }

  const Plan& plan_;
  SegmentLowering& lowering_;
  const GraphTables& t_;
  const std::vector<Segment>& segments_;
  const std::int64_t samples_;
  const bool split_;
  std::vector<int> configuration_;                // Per stage.
  std::map<std::size_t, SegmentLowerer> probes_;  // Per configuration, for forms of single values.
  std::map<std::vector<std::int32_t>, std::vector<int>> distinct_;
  std::map<std::pair<int, int>, std::size_t> transfer_index_[2];
  // Per stage: value -> programs and parameters that stand for it.
  struct Holder {
    int program = 0;
    std::size_t parameter = 0;
  };
  std::vector<std::map<std::int32_t, Holder>> holders_;
  Program program_;
};

void PlanLowerer::find_whole_gradients() {
  std::vector<int> stage_of_segment(segments_.size(), -1);
  for (const Chunk& chunk : plan_.chunks) {
    for (int s = chunk.first_segment; s < chunk.last_segment; ++s) {
      stage_of_segment[static_cast<std::size_t>(s)] = chunk.stage;
    }
  }
  const auto mesh_of = [&](int op) -> const Mesh& {
    const int segment = t_.segment_of_op[static_cast<std::size_t>(op)];
    return plan_
        .stages[static_cast<std::size_t>(stage_of_segment[static_cast<std::size_t>(segment)])]
        .mesh;
  };
  std::vector<ValueId> whole;
  for (std::size_t op = 0; op < t_.graph.ops.size(); ++op) {
    if (!t_.of_parameters_only[op]) continue;
    for (ValueId id : t_.graph.ops[op].outputs) {
      const auto& uses = t_.uses[id.index()];
      const bool differs = std::any_of(uses.begin(), uses.end(), [&](const GraphTables::Use& use) {
        return !same_shape(mesh_of(static_cast<int>(op)), mesh_of(use.op));
      });
      if (differs) whole.push_back(id);
    }
  }
  lowering_.set_whole_gradients(std::move(whole));
}

void PlanLowerer::find_configurations() {
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    std::size_t same = s;
    for (std::size_t t = 0; t < s && same == s; ++t) {
      if (configuration_[t] == static_cast<int>(t) && alike(plan_.stages[s], plan_.stages[t]))
        same = t;
    }
    configuration_.push_back(static_cast<int>(same));
    if (same == s) {
      probes_.try_emplace(s, t_, lowering_.types(), plan_.stages[s], plan_.training, samples_);
    }
  }
}

// What a segment's program depends on besides the forms of the values that cross its ends.
std::vector<std::int32_t> PlanLowerer::key_of(int segment, int configuration) const {
  const Segment& s = segments_[static_cast<std::size_t>(segment)];
  std::vector<std::int32_t> key = {s.shape_class, configuration};
  if (t_.overrides != nullptr) {
    if (!t_.overrides->recompute.empty())
      key.push_back(t_.overrides->recompute[static_cast<std::size_t>(segment)]);
    for (int op = s.first_op; op < s.last_op && !t_.overrides->rule_of_op.empty(); ++op)
      key.push_back(t_.overrides->rule_of_op[static_cast<std::size_t>(op)]);
  }
  // Which results cross and which gradients flow, four bits a value.
  std::int32_t bits = 0;
  int count = 0;
  for (int op = s.first_op; op < s.last_op; ++op) {
    for (ValueId id : t_.graph.ops[static_cast<std::size_t>(op)].outputs) {
      bits = bits << 3 | (t_.has_gradient[id.index()] ? 4 : 0) | (t_.crosses(id) ? 2 : 0) |
             (t_.gradient_crosses(id) ? 1 : 0);
      if (++count % 10 == 0) key.push_back(bits), bits = 0;
    }
  }
  key.push_back(bits);
  return key;
}

// Whether what the segment takes and leaves lies as the program has it.
bool PlanLowerer::fits(const SegmentProgram& program, int segment, SegmentLowerer& probe) {
  const auto copy = [&](ValueId id) { return value_in_copy(t_, program.segment, segment, id); };
  for (const auto* list : {&program.arguments, &program.results}) {
    for (std::int32_t b : *list) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      const ValueId id = copy(buffer.value);
      if (t_.graph.value(id).kind == ValueKind::kParameter && t_.uses[id.index()].size() == 1)
        continue;
      if (!(probe.resting(id) == buffer.form)) return false;
    }
  }
  for (const auto* list : {&program.gradient_arguments, &program.gradient_results}) {
    for (std::int32_t b : *list) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (!(probe.gradient_resting(copy(buffer.value)) == buffer.form)) return false;
    }
  }
  for (const ParameterShard& p : program.parameters) {
    const ValueId id = copy(p.value);
    if (t_.segment_uses(id) != t_.segment_uses(p.value)) return false;
    if (p.shared && probe.parameter_partial(id) != p.reduce) return false;
  }
  return true;
}

int PlanLowerer::program_of(int segment, std::size_t stage) {
  std::vector<int>& candidates = distinct_[key_of(segment, configuration_[stage])];
  SegmentLowerer& forms = probe(static_cast<int>(stage));
  for (int candidate : candidates) {
    if (fits(program_.segments[static_cast<std::size_t>(candidate)], segment, forms))
      return candidate;
  }
  candidates.push_back(static_cast<int>(program_.segments.size()));
  program_.segments.push_back(
      lowering_.lower(segment, plan_.stages[stage], plan_.training, samples_, split_));
  return candidates.back();
}

void PlanLowerer::add_transfer(int from, int to, ValueId id, bool gradient) {
  const int a = plan_.chunks[static_cast<std::size_t>(from)].stage;
  const int b = plan_.chunks[static_cast<std::size_t>(to)].stage;
  const auto form = [&](int stage) {
    return gradient ? probe(stage).gradient_resting(id) : probe(stage).resting(id);
  };
  auto& index = transfer_index_[gradient ? 1 : 0];
  const auto [it, fresh] = index.try_emplace({from, to}, program_.transfers.size());
  if (fresh) {
    program_.transfers.push_back({});
    program_.transfers.back().from_chunk = from;
    program_.transfers.back().to_chunk = to;
    program_.transfers.back().gradient = gradient;
  }
  Transfer& transfer = program_.transfers[it->second];
  transfer.items.push_back({id, form(a), form(b)});
  const Stage& source = plan_.stages[static_cast<std::size_t>(a)];
  const Stage& target = plan_.stages[static_cast<std::size_t>(b)];
  const bool same_meshes = same_shape(source.mesh, target.mesh);
  const Transfer::Item& item = transfer.items.back();
  transfer.aligned &= same_meshes && item.from == item.to;
  const TensorType& type = lowering_.types().type(id, samples_);
  transfer.bytes += same_meshes && item.from == item.to
                        ? local_bytes(type, item.from, source.mesh)
                        : exchange_bytes(type, item.from, source.mesh, item.to, target.mesh);
}

// A value that other stages use goes from its producer to the first chunk that uses it elsewhere,
// from there to the next stage that does, and so on: every link carries it once. Gradients come
// back the same way, added up as they go.
void PlanLowerer::add_transfers() {
  std::vector<std::vector<int>> chunk_of_segment(segments_.size());  // One per replica.
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    const Chunk& chunk = plan_.chunks[c];
    for (int s = chunk.first_segment; s < chunk.last_segment; ++s) {
      chunk_of_segment[static_cast<std::size_t>(s)].push_back(static_cast<int>(c));
    }
  }
  for (std::size_t v = 0; v < t_.graph.values.size(); ++v) {
    const ValueId id(static_cast<std::int64_t>(v));
    if (!t_.crosses(id)) continue;
    const auto segment_of = [&](OpId op) {
      return static_cast<std::size_t>(t_.segment_of_op[op.index()]);
    };
    const std::vector<int>& homes = chunk_of_segment[segment_of(t_.graph.value(id).producer)];
    for (std::size_t r = 0; r < homes.size(); ++r) {
      std::vector<int> stages = {plan_.chunks[static_cast<std::size_t>(homes[r])].stage};
      int holder = homes[r];
      std::set<int> users;
      for (const GraphTables::Use& use : t_.uses[v]) {
        users.insert(chunk_of_segment[segment_of(OpId(use.op))][r]);
      }
      for (int user : users) {
        const int stage = plan_.chunks[static_cast<std::size_t>(user)].stage;
        if (std::find(stages.begin(), stages.end(), stage) != stages.end()) continue;
        stages.push_back(stage);
        add_transfer(holder, user, id, false);
        if (t_.gradient_crosses(id)) add_transfer(user, holder, id, true);
        holder = user;
      }
    }
  }
}

void PlanLowerer::add_steps() {
  holders_.resize(plan_.stages.size());
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    std::vector<HeldSegment> held;
    for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
      if (plan_.chunks[c].stage != static_cast<int>(s)) continue;
      const ChunkProgram& chunk = program_.chunks[c];
      for (std::size_t i = 0; i < chunk.segments.size(); ++i) {
        const int index = chunk.segments[i];
        const SegmentProgram& segment = program_.segments[static_cast<std::size_t>(index)];
        auto at = std::find_if(held.begin(), held.end(),
                               [&](const HeldSegment& h) { return h.index == index; });
        if (at == held.end()) {
          held.push_back({&segment, 0, index, std::vector<int>(segment.parameters.size(), 0)});
          at = held.end() - 1;
        }
        ++at->copies;
        for (std::size_t p = 0; p < segment.parameters.size(); ++p) {
          const ValueId id =
              value_in_copy(t_, segment.segment, chunk.first_segment + static_cast<int>(i),
                            segment.parameters[p].value);
          const auto [it, fresh] = holders_[s].try_emplace(id.value, Holder{index, p});
          if (fresh) {
            ++at->parameters[p];
            continue;
          }
          // A copy whose gradient flows stands for the parameter before one without.
          const auto& known = program_.segments[static_cast<std::size_t>(it->second.program)];
          if (known.parameters[it->second.parameter].accumulated < 0 &&
              segment.parameters[p].accumulated >= 0) {
            const auto before = std::find_if(held.begin(), held.end(), [&](const HeldSegment& h) {
              return h.index == it->second.program;
            });
            --before->parameters[it->second.parameter];
            ++at->parameters[p];
            it->second = {index, p};
          }
        }
      }
    }
    program_.stages.push_back(lower_step(plan_.stages[s], plan_.training, held));
  }
}

// A parameter that several stages hold (tied embeddings, both directions of a bidirectional
// pipeline) has its gradient summed between them, before each reduces it.
void PlanLowerer::tie_parameters() {
  std::map<std::int32_t, std::vector<int>> stages_of;
  for (std::size_t s = 0; s < holders_.size(); ++s) {
    for (const auto& [id, holder] : holders_[s]) stages_of[id].push_back(static_cast<int>(s));
  }
  std::map<std::vector<int>, std::vector<ValueId>> ties;
  for (const auto& [id, stages] : stages_of) {
    if (stages.size() > 1) ties[stages].push_back(ValueId(id));
  }
  for (const auto& [stages, values] : ties) {
    const int tie = static_cast<int>(program_.ties.size());
    Tie made{stages, {}};
    for (ValueId id : values) {
      if (t_.has_gradient[id.index()]) made.values.push_back(id);
    }
    if (made.values.empty()) continue;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      const auto self = static_cast<std::size_t>(stages[k]);
      StageProgram& stage = program_.stages[self];
      Instr instr;
      instr.kind = InstrKind::kCollective;
      instr.collective = CollectiveKind::kAllReduce;
      instr.purpose = Purpose::kGradient;
      instr.tie = tie;
      const auto other = static_cast<std::size_t>(stages[0]);
      if (!same_shape(plan_.stages[self].mesh, plan_.stages[other].mesh)) {
        throw Error(fmt::format("parameter '{}' is held by stages {} and {}, whose meshes differ",
                                t_.graph.value(made.values[0]).name, other, self),
                    {}, "give stages that share parameters equal meshes");
      }
      double elements = 0;
      std::vector<StageProgram::Operand> operands;
      for (ValueId id : made.values) {
        const Holder& h = holders_[self].at(id.value);
        const ParameterShard& p =
            program_.segments[static_cast<std::size_t>(h.program)].parameters[h.parameter];
        elements += p.elements;
        if (p.accumulated >= 0) operands.push_back({h.program, p.accumulated});
        const Holder& g = holders_[other].at(id.value);
        const SegmentProgram& mine = program_.segments[static_cast<std::size_t>(h.program)];
        const SegmentProgram& theirs = program_.segments[static_cast<std::size_t>(g.program)];
        const auto accumulator = [](const SegmentProgram& s, std::size_t i) {
          const std::int32_t b = s.parameters[i].accumulated;
          return b < 0 ? Buffer{} : s.buffers[static_cast<std::size_t>(b)];
        };
        const Buffer a = accumulator(mine, h.parameter), b = accumulator(theirs, g.parameter);
        if (!(a.form == b.form && a.flat == b.flat)) {
          throw Error(
              fmt::format("the gradient of parameter '{}' lies differently on stages {} and "
                          "{}, which share it: {} and {}",
                          t_.graph.value(id).name, other, self,
                          to_string(b.form, t_.graph.value(id).type, plan_.stages[other].mesh),
                          to_string(a.form, t_.graph.value(id).type, plan_.stages[self].mesh)),
              {}, "split the operators that use it alike");
        }
      }
      std::sort(operands.begin(), operands.end(), [](const auto& a, const auto& b) {
        return std::pair(a.segment, a.buffer) < std::pair(b.segment, b.buffer);
      });
      operands.erase(std::unique(operands.begin(), operands.end()), operands.end());
      instr.operands = static_cast<std::uint32_t>(stage.operands.size());
      instr.in_count = instr.out_count = static_cast<std::uint32_t>(operands.size());
      stage.operands.insert(stage.operands.end(), operands.begin(), operands.end());
      stage.operands.insert(stage.operands.end(), operands.begin(), operands.end());
      // Two stages exchange each byte once in either direction, at the same time.
      instr.bytes = Bytes(elements * plan_.training.gradient_bytes());
      const auto peer = static_cast<std::size_t>(k == 0 ? stages.back() : stages[0]);
      instr.peer_offset =
          plan_.stages[peer].mesh.first_device - plan_.stages[self].mesh.first_device;
      stage.step.insert(stage.step.begin(), instr);
    }
    program_.ties.push_back(std::move(made));
  }
}

Program PlanLowerer::run() {
  program_.micro_batches = plan_.micro_batches;
  find_whole_gradients();
  find_configurations();
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    const Chunk& chunk = plan_.chunks[c];
    ChunkProgram lowered;
    lowered.stage = chunk.stage;
    lowered.first_segment = chunk.first_segment;
    lowered.backward = false;
    for (int i = chunk.first_segment; i < chunk.last_segment; ++i) {
      lowered.segments.push_back(program_of(i, static_cast<std::size_t>(chunk.stage)));
      const SegmentProgram& segment =
          program_.segments[static_cast<std::size_t>(lowered.segments.back())];
      lowered.backward |= !segment.backward.empty() || !segment.weight.empty();
    }
    program_.chunks.push_back(std::move(lowered));
  }
  add_transfers();
  add_steps();
  tie_parameters();
  fill_lanes(plan_, program_);
  return std::move(program_);
}

}  // namespace

Program lower(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments) {
  SegmentLowering lowering(graph, segments, plan.overrides);
  return lower(plan, lowering, segments);
}

Program lower(const Plan& plan, SegmentLowering& lowering, const std::vector<Segment>& segments) {
  return PlanLowerer(plan, lowering, segments).run();
}

}  // namespace meshwright
