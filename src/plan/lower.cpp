#include "plan/lower.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

Instr collective(CollectiveKind kind, Purpose purpose, const AxisList& axes, double bytes) {
  Instr instr;
  instr.kind = InstrKind::kCollective;
  instr.collective = kind;
  instr.purpose = purpose;
  instr.overlapped = true;
  instr.group = axes;
  instr.bytes = Bytes(bytes);
  return instr;
}

// A parameter that two stages hold (tied embeddings) has its gradient summed between them.
void tie_shared_parameters(const Plan& plan, const std::vector<std::vector<int>>& held,
                           Program& program) {
  std::map<std::int32_t, std::vector<std::pair<int, double>>>
      holders;  // value -> (stage, elements)
  for (std::size_t s = 0; s < held.size(); ++s) {
    for (int i : held[s]) {
      for (const ParameterShard& p : program.segments[static_cast<std::size_t>(i)].parameters) {
        auto& list = holders[p.value.value];
        if (p.shared && (list.empty() || list.back().first != static_cast<int>(s))) {
          list.emplace_back(static_cast<int>(s), p.elements);
        }
      }
    }
  }
  for (const auto& [value, list] : holders) {
    for (std::size_t k = 0; list.size() > 1 && k < list.size(); ++k) {
      // Two stages exchange each byte once in either direction, at the same time.
      Instr instr = collective(CollectiveKind::kAllReduce, Purpose::kGradient, {},
                               list[k].second * plan.training.gradient_bytes());
      instr.overlapped = false;
      const auto self = static_cast<std::size_t>(list[k].first);
      const auto peer = static_cast<std::size_t>(list[k == 0 ? list.size() - 1 : 0].first);
      instr.peer_offset = plan.stages[peer].mesh.first_device - plan.stages[self].mesh.first_device;
      program.stages[self].step.insert(program.stages[self].step.begin(), instr);
    }
  }
}

}  // namespace

std::vector<Instr> lower_step(const Stage& stage, const Training& training,
                              const std::vector<HeldSegment>& segments) {
  // Parameters whose gradients are reduced over the same axes travel together.
  std::map<std::pair<bool, std::uint32_t>, double> elements;
  std::set<std::int32_t> seen;
  for (const HeldSegment& held : segments) {
    for (const ParameterShard& p : held.segment->parameters) {
      if (p.shared && !seen.insert(p.value.value).second) continue;
      elements[{p.grouped, p.reduce}] += p.elements * (p.shared ? 1 : held.copies);
    }
  }
  std::vector<Instr> reduce, gather;
  double optimizer_elements = 0;
  const Mesh& mesh = stage.mesh;
  for (const auto& [key, count] : elements) {
    const auto& [grouped, mask] = key;
    const AxisList& state = grouped ? stage.expert_state_axes : stage.state_axes;
    const std::uint32_t sharded = mask & state.mask();
    // A parameter that is equal along a state axis (no sum due) is still sharded along it.
    const int parts = mesh.size(state);
    double bytes = count * training.gradient_bytes();
    const bool reduced_in_backward =
        stage.state == StateSharding::kZero2 || stage.state == StateSharding::kZero3;
    if (stage.state == StateSharding::kZero1 && sharded != 0) {
      reduce.push_back(collective(CollectiveKind::kReduceScatter, Purpose::kGradient,
                                  axes_of_mask(sharded), bytes));
      bytes /= mesh.size(axes_of_mask(sharded));
    }
    std::uint32_t rest = mask & ~sharded;
    if (reduced_in_backward) rest &= ~stage.roles.data.mask(), bytes /= parts;
    if (rest != 0) {
      reduce.push_back(
          collective(CollectiveKind::kAllReduce, Purpose::kGradient, axes_of_mask(rest), bytes));
    }
    if (stage.state != StateSharding::kNone)
      optimizer_elements += count / parts;
    else
      optimizer_elements += count;
    if ((stage.state == StateSharding::kZero1 || stage.state == StateSharding::kZero2) &&
        parts > 1) {
      gather.push_back(collective(CollectiveKind::kAllGather, Purpose::kParameterGather, state,
                                  count * training.parameter_bytes()));
    }
  }
  std::vector<Instr> step = std::move(reduce);
  Instr optimizer;
  optimizer.kind = InstrKind::kOptimizer;
  optimizer.purpose = Purpose::kOptimizer;
  // Reads gradient, master copy and moments; writes master copy, moments and the parameter.
  optimizer.bytes =
      Bytes(optimizer_elements * (training.gradient_bytes() + training.parameter_bytes() +
                                  2.0 * training.optimizer_bytes()));
  step.push_back(optimizer);
  step.insert(step.end(), gather.begin(), gather.end());
  return step;
}

Program lower(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments) {
  SegmentLowering lowering(graph, segments);
  return lower(plan, lowering, segments);
}

Program lower(const Plan& plan, SegmentLowering& lowering, const std::vector<Segment>& segments) {
  Program program;
  program.micro_batches = plan.micro_batches;

  // Stages with equal roles share segment programs; meshes of equal shape differ only in their
  // first device.
  std::vector<int> config(plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    config[s] = static_cast<int>(s);
    for (std::size_t t = 0; t < s; ++t) {
      const Stage& a = plan.stages[s];
      const Stage& b = plan.stages[t];
      if (a.roles == b.roles && a.mesh.axes == b.mesh.axes && a.recompute == b.recompute &&
          a.state == b.state && a.state_axes == b.state_axes &&
          a.expert_state_axes == b.expert_state_axes) {
        config[s] = static_cast<int>(t);
        break;
      }
    }
  }
  std::map<std::pair<int, int>, int> distinct;
  std::vector<std::vector<const SegmentProgram*>> held(plan.stages.size());
  std::vector<std::vector<int>> held_index(plan.stages.size());
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const Chunk& chunk = plan.chunks[c];
    const auto s = static_cast<std::size_t>(chunk.stage);
    const std::int64_t samples = plan.global_batch / plan.micro_batches;
    ChunkProgram lowered;
    lowered.stage = chunk.stage;
    for (int i = chunk.first_segment; i < chunk.last_segment; ++i) {
      const std::pair key{segments[static_cast<std::size_t>(i)].shape_class, config[s]};
      const auto [it, fresh] = distinct.try_emplace(key, static_cast<int>(program.segments.size()));
      if (fresh) {
        program.segments.push_back(lowering.lower(i, plan.stages[s], plan.training, samples));
      }
      lowered.segments.push_back(it->second);
      held_index[s].push_back(it->second);
    }
    if (c + 1 < plan.chunks.size()) {
      lowered.send =
          lowering.boundary_bytes(chunk.last_segment - 1, plan.stages[s], plan.training, samples);
    }
    program.chunks.push_back(std::move(lowered));
  }
  const int stages = static_cast<int>(plan.stages.size());
  const ScheduleShape shape{stages, static_cast<int>(plan.chunks.size()) / stages,
                            static_cast<int>(plan.micro_batches)};
  const Schedule& schedule = find_schedule(plan.schedule);
  if (const std::string_view reason = schedule.refuses(shape); !reason.empty()) {
    throw Error(std::string(reason), "schedule");
  }
  auto orders = schedule.generate(shape);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::vector<HeldSegment> stage_segments;
    for (int i : held_index[s]) {
      stage_segments.push_back({&program.segments[static_cast<std::size_t>(i)], 1});
    }
    program.stages.push_back({lower_step(plan.stages[s], plan.training, stage_segments), {}, {}});
    program.lanes.push_back({{static_cast<int>(s)}, plan.stages[s].mesh, std::move(orders[s])});
  }
  tie_shared_parameters(plan, held_index, program);
  return program;
}

}  // namespace meshwright
