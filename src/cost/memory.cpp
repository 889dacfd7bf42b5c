#include "cost/memory.h"

#include <algorithm>
#include <map>
#include <set>

namespace meshwright {

Bytes saved_bytes(const SegmentProgram& segment, const Efficiency& e) {
  // The loss's own copy is what it is.
  return (segment.saved - segment.loss) * e.activation_scale + segment.loss +
         segment.gathered * e.keeps_gathered;
}

Bytes transient_bytes(const SegmentProgram& segment, const Efficiency& e) {
  return std::max({segment.forward_peak, segment.backward_peak, segment.loss * e.loss_copies});
}

MemoryBreakdown stage_memory(const StageContents& contents, const Stage& stage,
                             const Training& training, const Efficiency& e) {
  MemoryBreakdown memory;
  const Mesh& mesh = stage.mesh;
  double largest_segment = 0;  // Parameter elements of one segment, unsharded.
  double saved = 0;
  double transient = 0;
  double communication = 0;
  std::set<std::int32_t> shared;
  for (const StageContents::Held& held : contents.held) {
    const SegmentProgram& segment = *held.segment;
    double segment_elements = 0;
    for (const ParameterShard& p : segment.parameters) {
      if (p.shared && !shared.insert(p.value.value).second) continue;
      const double copies = p.shared ? 1 : held.copies;
      const AxisList& axes = p.grouped ? stage.expert_state_axes : stage.state_axes;
      const double parts = stage.state == StateSharding::kNone ? 1 : mesh.size(axes);
      const double whole = p.elements * copies;
      segment_elements += p.elements;
      const bool sharded_parameters = stage.state == StateSharding::kZero3;
      const bool sharded_gradients = sharded_parameters || stage.state == StateSharding::kZero2;
      // Fully sharded engines keep the master copy as the parameter; the working copy exists only
      // while gathered.
      if (!sharded_parameters) memory.parameters += Bytes(whole * training.parameter_bytes());
      memory.gradients +=
          Bytes(whole * training.gradient_bytes() / (sharded_gradients ? parts : 1));
      if (!sharded_gradients) {
        memory.gradients += Bytes(whole * training.parameter_bytes() * e.working_gradients);
      }
      memory.optimizer += Bytes(whole * training.optimizer_bytes() / parts);
    }
    largest_segment = std::max(largest_segment, segment_elements);
    saved += saved_bytes(segment, e).value * held.copies * held.in_flight;
    transient = std::max(transient, transient_bytes(segment, e).value);
    for (const auto* block : {&segment.forward, &segment.backward}) {
      for (const Instr& instr : *block) {
        if (instr.kind == InstrKind::kCollective && !instr.overlapped) {
          communication = std::max(communication, instr.bytes.value);
        }
      }
    }
  }
  if (stage.state == StateSharding::kZero3) {
    // The segment at work and the one being gathered, and one segment's gradients before they are
    // scattered.
    memory.parameters += Bytes(2 * largest_segment * training.parameter_bytes());
    memory.transient += Bytes(largest_segment * training.parameter_bytes());
  }
  memory.activations = Bytes(saved);
  memory.transient += Bytes(transient);
  memory.communication = Bytes(communication * e.communication_buffers);
  memory.context = e.context;
  memory.fragmentation =
      (memory.activations + memory.transient + memory.communication) * e.fragmentation;
  return memory;
}

std::vector<int> in_flight(const std::vector<ScheduleItem>& order,
                           const std::vector<double>& weight) {
  // What the forward pass saved is needed until the last pass of the micro-batch: its backward
  // pass, or its weight pass where the two are split. A chunk without either keeps nothing.
  std::vector<Phase> last(weight.size(), Phase::kForward);
  for (const ScheduleItem& item : order) {
    if (!is_pass(item.phase)) continue;
    Phase& phase = last[static_cast<std::size_t>(item.chunk)];
    phase = std::max(phase, item.phase);
  }
  std::vector<int> now(weight.size(), 0);
  std::vector<int> worst(weight.size(), 0);
  double held = 0;
  double most = -1;
  for (const ScheduleItem& item : order) {
    if (!is_pass(item.phase)) continue;
    const auto c = static_cast<std::size_t>(item.chunk);
    if (last[c] == Phase::kForward) continue;
    if (item.phase == Phase::kForward) {
      ++now[c];
      held += weight[c];
      if (held > most) most = held, worst = now;
    } else if (item.phase == last[c]) {
      --now[c];
      held -= weight[c];
    }
  }
  return worst;
}

std::vector<MemoryBreakdown> program_memory(const Program& program, const Plan& plan,
                                            Pricer& pricer) {
  std::vector<double> weight;
  for (const ChunkProgram& chunk : program.chunks) {
    double bytes = 0;
    for (int s : chunk.segments) bytes += program.segments[static_cast<std::size_t>(s)].saved.value;
    weight.push_back(std::max(bytes, 1.0));
  }
  std::vector<MemoryBreakdown> result;
  for (const Lane& lane : program.lanes) {
    const std::vector<int> flight = in_flight(lane.order, weight);
    MemoryBreakdown total;
    for (int s : lane.stages) {
      StageContents contents;
      for (std::size_t c = 0; c < program.chunks.size(); ++c) {
        const ChunkProgram& chunk = program.chunks[c];
        if (chunk.stage != s) continue;
        std::map<int, int> copies;
        for (int i : chunk.segments) ++copies[i];
        for (const auto& [i, count] : copies) {
          contents.held.push_back(
              {&program.segments[static_cast<std::size_t>(i)], count, flight[c]});
        }
      }
      const Stage& stage = plan.stages[static_cast<std::size_t>(s)];
      const MemoryBreakdown part =
          stage_memory(contents, stage, plan.training, pricer.efficiency(stage.mesh));
      if (s == lane.stages.front()) {
        total = part;
        continue;
      }
      // A device runs the segments of one stage at a time.
      total.parameters += part.parameters;
      total.gradients += part.gradients;
      total.optimizer += part.optimizer;
      total.activations += part.activations;
      total.transient = std::max(total.transient, part.transient);
      total.communication = std::max(total.communication, part.communication);
      total.fragmentation += part.fragmentation;
    }
    result.push_back(total);
  }
  return result;
}

}  // namespace meshwright
