#include "search/layout_costs.h"

#include <algorithm>

namespace meshwright {

namespace {

// Parameters that are reduced and sharded alike count as one; those that several segments share
// keep their names.
void merge_parameters(std::vector<ParameterShard>& parameters) {
  std::vector<ParameterShard> merged;
  for (const ParameterShard& p : parameters) {
    const auto alike = std::find_if(merged.begin(), merged.end(), [&](const ParameterShard& q) {
      return !p.shared && !q.shared && p.grouped == q.grouped && p.reduce == q.reduce &&
             (p.accumulated < 0) == (q.accumulated < 0);
    });
    if (alike == merged.end())
      merged.push_back(p);
    else
      alike->elements += p.elements;
  }
  parameters = std::move(merged);
  parameters.shrink_to_fit();
}

}  // namespace

LayoutCostTable::LayoutCostTable(const Problem& problem, const ModelFacts& facts, Pricer& pricer)
    : problem_(problem),
      facts_(facts),
      pricer_(pricer),
      lowering_(problem.graph, problem.segments, problem.overrides()) {
  representative_.assign(static_cast<std::size_t>(shape_class_count(problem.segments)), -1);
  boundary_representative_.assign(static_cast<std::size_t>(lowering_.boundary_class_count()), -1);
  for (std::size_t i = 0; i < problem.segments.size(); ++i) {
    int& segment = representative_[static_cast<std::size_t>(problem.segments[i].shape_class)];
    if (segment < 0) segment = static_cast<int>(i);
    int& boundary = boundary_representative_[static_cast<std::size_t>(
        lowering_.boundary_class(static_cast<int>(i)))];
    if (boundary < 0) boundary = static_cast<int>(i);
  }
}

const LayoutCosts& LayoutCostTable::costs(const Degrees& d) {
  Degrees shape = d;
  shape.pp = shape.vpp = 1;
  const bool sharded = d.zero == StateSharding::kZero2 || d.zero == StateSharding::kZero3;
  // Without sharded state inside the passes and without experts, replicas do not meet before the
  // step.
  if (!sharded && facts_.experts == 0) {
    shape.dp = 1;
    shape.zero = StateSharding::kNone;
    shape.zero_group = 0;
    shape.pp_inside_dp = false;
  }
  std::vector<std::int64_t> key = {shape.tp,
                                   shape.sp,
                                   shape.cp,
                                   shape.dp,
                                   shape.ep,
                                   shape.etp,
                                   shape.micro_batch,
                                   static_cast<std::int64_t>(shape.recompute),
                                   static_cast<std::int64_t>(shape.zero),
                                   shape.zero_group,
                                   shape.pp_inside_dp ? d.pp : 0};
  const auto [it, fresh] = table_.try_emplace(std::move(key));
  if (!fresh) return *it->second;
  if (shape.pp_inside_dp) shape.pp = d.pp;

  auto costs = std::make_unique<LayoutCosts>();
  costs->stage = make_stage(shape, facts_.all_kv_heads, 0);
  const std::int64_t samples = shape.micro_batch * shape.dp;
  const Efficiency& e = pricer_.efficiency(costs->stage.mesh);
  for (int segment : representative_) {
    ClassCost c;
    c.program = lowering_.lower(segment, costs->stage, problem_.training, samples);
    pricer_.sign(c.program, costs->stage.mesh, samples);
    const BlockTime forward = pricer_.block(c.program.forward, costs->stage.mesh);
    const BlockTime backward = pricer_.block(c.program.backward, costs->stage.mesh);
    for (const int pass : {0, 1}) {
      const BlockTime& block = pass == 0 ? forward : backward;
      c.serial[pass] = block.serial;
      c.traffic[pass] = block.gather + block.scatter;
      for (Seconds t : block.by_purpose) c.without_overlap[pass] += t;
      c.time += c.serial[pass] + c.traffic[pass] -
                std::min(c.serial[pass], c.traffic[pass] * e.gather_overlap);
    }
    c.saved = saved_bytes(c.program, e).value * (1 + e.fragmentation);
    c.transient = transient_bytes(c.program, e).value * (1 + e.fragmentation);
    StageContents contents;
    contents.held.push_back({&c.program, 1, 0});
    const MemoryBreakdown m = stage_memory(contents, costs->stage, problem_.training, e);
    c.fixed_memory = (m.parameters + m.gradients + m.optimizer).value;
    c.transient += m.communication.value;
    if (costs->stage.state == StateSharding::kZero3) {
      // What is gathered whole is there for a segment at a time, not for all that a stage holds.
      double elements = 0;
      for (const ParameterShard& p : c.program.parameters) elements += p.elements;
      const double whole = elements * problem_.training.parameter_bytes();
      c.fixed_memory -= 2 * whole;
      c.gathered = whole * (3 + e.fragmentation);
    }
    // Only the parameters are asked for again; a search holds thousands of these.
    SegmentProgram kept;
    kept.parameters = std::move(c.program.parameters);
    kept.saved = c.program.saved;
    kept.gathered = c.program.gathered;
    kept.loss = c.program.loss;
    kept.forward_peak = c.program.forward_peak;
    kept.backward_peak = c.program.backward_peak;
    c.program = std::move(kept);
    merge_parameters(c.program.parameters);
    costs->classes.push_back(std::move(c));
  }
  for (int segment : boundary_representative_) {
    costs->boundary.push_back(
        lowering_.boundary_bytes(segment, costs->stage, problem_.training, samples));
  }
  it->second = std::move(costs);
  return *it->second;
}

}  // namespace meshwright
