#include <map>
#include <set>

#include "plan/lower.h"

namespace meshwright {
namespace {

// Parameters whose gradients are reduced over the same axes travel together.
struct Member {
  const HeldSegment* held = nullptr;
  std::size_t parameter = 0;
  int gradient = -1;  // Current buffer, counted as StageProgram::buffers does.

  const ParameterShard& shard() const { return held->segment->parameters[parameter]; }
};
struct Bundle {
  double elements = 0;
  std::vector<Member> members;
};

class StepLowerer {
 public:
  StepLowerer(const Stage& stage, const Training& training) : stage_(stage), training_(training) {}

  StageProgram run(const std::vector<HeldSegment>& segments);

 private:
  // Emits an instruction whose operands are what `of` gives for every member: the buffer read and
  // the one written.
  template <class Of>
  void emit(Instr instr, Bundle& bundle, Of&& of) {
    std::vector<StageProgram::Operand> in, out;
    for (Member& m : bundle.members) {
      if (m.gradient < 0) continue;  // Costs only: a segment without buffers.
      const auto [read, written] = of(m);
      in.push_back({m.held->index, read});
      out.push_back({m.held->index, written});
    }
    attach(instr, in, out);
  }
  void attach(Instr instr, const std::vector<StageProgram::Operand>& in,
              const std::vector<StageProgram::Operand>& out) {
    instr.operands = static_cast<std::uint32_t>(program_.operands.size());
    instr.in_count = static_cast<std::uint32_t>(in.size());
    instr.out_count = static_cast<std::uint32_t>(out.size());
    program_.operands.insert(program_.operands.end(), in.begin(), in.end());
    program_.operands.insert(program_.operands.end(), out.begin(), out.end());
    program_.step.push_back(instr);
  }
  int new_buffer(const Member& m, const Buffer& buffer) {
    std::vector<Buffer>& more = program_.buffers[m.held->index];
    more.push_back(buffer);
    return static_cast<int>(m.held->segment->buffers.size() + more.size()) - 1;
  }
  const Buffer& buffer(const Member& m, int index) const {
    const auto own = m.held->segment->buffers.size();
    const auto i = static_cast<std::size_t>(index);
    return i < own ? m.held->segment->buffers[i] : program_.buffers.at(m.held->index)[i - own];
  }
  // A gradient after one more step: `change` says how its buffer differs.
  template <class Change>
  void step_gradient(const Instr& instr, Bundle& bundle, Change&& change) {
    emit(instr, bundle, [&](Member& m) {
      const int before = m.gradient;
      Buffer next = buffer(m, before);
      change(m.shard(), next);
      m.gradient = new_buffer(m, next);
      return std::pair(before, m.gradient);
    });
  }
  Instr collective(CollectiveKind kind, Purpose purpose, const AxisList& axes, double bytes) const {
    Instr instr;
    instr.kind = InstrKind::kCollective;
    instr.collective = kind;
    instr.purpose = purpose;
    instr.overlapped = true;
    instr.group = axes;
    instr.bytes = Bytes(bytes);
    return instr;
  }
  void reduce(bool grouped, std::uint32_t mask, Bundle& bundle);

  const Stage& stage_;
  const Training& training_;
  StageProgram program_;
};

void StepLowerer::reduce(bool grouped, std::uint32_t mask, Bundle& bundle) {
  const Mesh& mesh = stage_.mesh;
  const AxisList& state = grouped ? stage_.expert_state_axes : stage_.state_axes;
  double bytes = bundle.elements * training_.gradient_bytes();
  const std::uint32_t sharded = mask & state.mask();
  std::uint32_t rest = mask & ~sharded;
  if (stage_.state == StateSharding::kZero1) {
    if (sharded != 0) {
      AxisList axes;
      for (int axis : state) {
        if (sharded >> axis & 1u) axes.push_back(axis);
      }
      step_gradient(collective(CollectiveKind::kReduceScatter, Purpose::kGradient, axes, bytes),
                    bundle, [&](const ParameterShard&, Buffer& b) {
                      b.form.partial &= ~sharded;
                      b.flat = axes;
                    });
      bytes /= mesh.size(axes);
    }
    // A parameter that is equal along a state axis (no sum due) is still sharded along it.
    if (sharded != state.mask()) {
      Instr slice;
      slice.kind = InstrKind::kSlice;
      step_gradient(slice, bundle, [&](const ParameterShard& p, Buffer& b) {
        b.flat = state_shard_axes(stage_, p);
      });
    }
  } else if (stage_.state != StateSharding::kNone) {  // Reduced by every backward pass.
    rest &= ~stage_.roles.data.mask();
    bytes /= mesh.size(state);
  } else {
    rest = mask;
  }
  if (rest != 0) {
    step_gradient(
        collective(CollectiveKind::kAllReduce, Purpose::kGradient, axes_of_mask(rest), bytes),
        bundle, [&](const ParameterShard&, Buffer& b) { b.form.partial &= ~rest; });
  }
}

StageProgram StepLowerer::run(const std::vector<HeldSegment>& segments) {
  std::map<std::pair<bool, std::uint32_t>, Bundle> bundles;
  std::set<std::int32_t> seen;
  for (const HeldSegment& held : segments) {
    std::vector<int>& copies = program_.copies[held.index];
    for (std::size_t i = 0; i < held.segment->parameters.size(); ++i) {
      const ParameterShard& p = held.segment->parameters[i];
      int count = held.copies;
      if (!held.parameters.empty())
        count = held.parameters[i];
      else if (p.shared)
        count = seen.insert(p.value.value).second ? 1 : 0;
      copies.push_back(count);
      if (count == 0 || p.accumulated < 0) continue;
      Bundle& bundle = bundles[{p.grouped, p.reduce}];
      bundle.elements += p.elements * count;
      bundle.members.push_back({&held, i, held.segment->buffers.empty() ? -1 : p.accumulated});
    }
  }
  for (auto& [key, bundle] : bundles) reduce(key.first, key.second, bundle);

  double elements = 0;
  Instr optimizer;
  optimizer.kind = InstrKind::kOptimizer;
  optimizer.purpose = Purpose::kOptimizer;
  std::vector<StageProgram::Operand> in, out;
  const bool gathers =
      stage_.state == StateSharding::kZero1 || stage_.state == StateSharding::kZero2;
  std::vector<std::vector<std::pair<StageProgram::Operand, StageProgram::Operand>>> updated;
  for (auto& [key, bundle] : bundles) {
    const AxisList& state = key.first ? stage_.expert_state_axes : stage_.state_axes;
    const int parts = stage_.state == StateSharding::kNone ? 1 : stage_.mesh.size(state);
    elements += bundle.elements / parts;
    updated.emplace_back();
    for (Member& m : bundle.members) {
      if (m.gradient < 0) continue;
      const ParameterShard& p = m.shard();
      int target = p.buffer;
      if (gathers && parts > 1) {
        Buffer shard = buffer(m, p.buffer);
        shard.flat = state_shard_axes(stage_, p);
        target = new_buffer(m, shard);
        updated.back().push_back({{m.held->index, target}, {m.held->index, p.buffer}});
      }
      in.push_back({m.held->index, m.gradient});
      out.push_back({m.held->index, target});
    }
  }
  // Reads gradient, master copy and moments; writes master copy, moments and the parameter.
  optimizer.bytes = Bytes(elements * (training_.gradient_bytes() + training_.parameter_bytes() +
                                      2.0 * training_.optimizer_bytes()));
  attach(optimizer, in, out);
  std::size_t index = 0;
  for (auto& [key, bundle] : bundles) {
    const auto& shards = updated[index++];
    const AxisList& state = key.first ? stage_.expert_state_axes : stage_.state_axes;
    if (!gathers || stage_.mesh.size(state) == 1) continue;
    in.clear();
    out.clear();
    for (const auto& [shard, whole] : shards) {
      in.push_back(shard);
      out.push_back(whole);
    }
    attach(collective(CollectiveKind::kAllGather, Purpose::kParameterGather, state,
                      bundle.elements * training_.parameter_bytes()),
           in, out);
  }
  return std::move(program_);
}

}  // namespace

AxisList state_shard_axes(const Stage& stage, const ParameterShard& parameter) {
  if (stage.state == StateSharding::kNone) return {};
  const AxisList& state = parameter.grouped ? stage.expert_state_axes : stage.state_axes;
  AxisList axes;
  for (const bool summed : {true, false}) {
    for (int axis : state) {
      if (((parameter.reduce >> axis & 1u) != 0) == summed) axes.push_back(axis);
    }
  }
  return axes;
}

StageProgram lower_step(const Stage& stage, const Training& training,
                        const std::vector<HeldSegment>& segments) {
  return StepLowerer(stage, training).run(segments);
}

}  // namespace meshwright
