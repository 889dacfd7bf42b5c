#include "space/count_space.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "models/test_models.h"
#include "plan/check.h"
#include "plan/schedule.h"
#include "space/limits.h"

namespace meshwright {
namespace {

// Every strategy of an operator, written out: `accept` sees each.
void each_strategy(const Rule& rule, const Mesh& mesh,
                   const std::function<void(const Strategy&)>& accept) {
  const std::size_t choices = rule.factors.size() + 1;
  std::size_t total = 1;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) total *= choices;
  for (std::size_t code = 0; code < total; ++code) {
    Strategy s;
    s.factors.resize(rule.factors.size());
    std::size_t rest = code;
    bool legal = true;
    for (std::size_t a = 0; a < mesh.axes.size(); ++a, rest /= choices) {
      if (rest % choices != 0) {
        s.factors[rest % choices - 1].push_back(static_cast<int>(a));
      }
    }
    for (std::size_t f = 0; f < rule.factors.size(); ++f) {
      const Factor& factor = rule.factors[f];
      if (s.factors[f].empty()) continue;
      legal &= factor.kind != FactorKind::kFrozen;
      legal &= mesh.size(s.factors[f]) <= factor.size / factor.unit;
    }
    if (legal) accept(s);
  }
}

// Plans of a model without ring attention, counted one layout, one operator, one cut at a time.
double brute_force(const CompiledSpace& space, const Graph& graph,
                   const std::vector<Segment>& segments, int devices, std::int64_t batch) {
  const ModelFacts facts = model_facts(graph, segments);
  const Restrictions& r = space.restrictions;
  double total = 0;
  for (int tp = 1; tp <= devices; ++tp) {
    for (int dp = 1; dp * tp <= devices; ++dp) {
      for (int pp = 1; pp * dp * tp <= devices; ++pp) {
        for (int mbs = 1; mbs <= batch; ++mbs) {
          for (int vpp = 1; vpp <= 8; ++vpp) {
            if (pp * dp * tp != devices) continue;
            const Degrees d{.pp = pp, .vpp = vpp, .dp = dp, .tp = tp, .micro_batch = mbs};
            if (!r.pp.contains(pp) || !r.tp.contains(tp) || !r.dp.contains(dp) ||
                !r.vpp.contains(vpp) || !r.micro_batch.contains(mbs) || !r.cp.contains(1)) {
              continue;
            }
            for (const Schedule* schedule : all_schedules()) {
              if (vpp < schedule->vpp_min || vpp > schedule->vpp_max) continue;
              if (!degrees_legal(facts, devices, batch, d, schedule->name)) continue;
              const ScheduleShape shape{.stages = pp, .chunks_per_stage = vpp};
              double plans = r.state.empty() ? 4 : static_cast<double>(r.state.size());
              // Cuts: a bit per segment after which a chunk may end.
              double cuts = 0;
              for (unsigned bits = 0; bits < 1u << (segments.size() - 1); ++bits) {
                int chunk = 0;
                bool legal = true;
                for (std::size_t i = 0; i < segments.size(); ++i) {
                  for (const SegmentPin& pin : space.pins) {
                    for (int s : pin.segments) {
                      if (s != static_cast<int>(i)) continue;
                      for (int replica = 0; replica < schedule->replicas && chunk < pp * vpp;
                           ++replica) {
                        const int on = schedule->stage_of(shape, replica * pp * vpp + chunk);
                        legal &= takes_in(pin.placement, on, pp, {}, 0) != pin.forbidden;
                      }
                    }
                  }
                  if ((bits >> i & 1u) == 0) continue;
                  legal &= segments[i].is_layer;
                  ++chunk;
                }
                cuts += legal && chunk + 1 == pp * vpp;
              }
              plans *= cuts;
              for (std::size_t i = 0; i < segments.size(); ++i) {
                const bool told = space.overrides && !space.overrides->recompute.empty() &&
                                  space.overrides->recompute[i] >= 0;
                plans *= told ? 1 : 3;
              }
              const Stage stage = make_stage(d, facts.all_kv_heads, 0);
              MicroBatchTables tables(graph);
              for (std::size_t i = 0; i < graph.ops.size(); ++i) {
                const int op = static_cast<int>(i);
                const Rule& rule = tables.rule(op, find_op(graph.ops[i].kind), mbs * dp);
                double count = 0;
                each_strategy(rule, stage.mesh, [&](const Strategy& s) {
                  bool good = true;
                  for (const SpaceRule& space_rule : space.space.rules) {
                    PlanBuilder builder(graph, segments);
                    const std::vector<int> ops = builder.find(space_rule.match);
                    if (!std::binary_search(ops.begin(), ops.end(), op)) continue;
                    good &= obeys(space_rule, rule, s, stage.roles, stage.mesh);
                  }
                  count += good;
                });
                plans *= count;
              }
              total += plans;
            }
          }
        }
      }
    }
  }
  return std::log10(total);
}

TEST(CountSpace, EqualsBruteForceEnumeration) {
  const Graph graph = test_model({.batch = 4,
                                  .seq = 8,
                                  .hidden = 4,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 2,
                                  .ffn = 8,
                                  .vocab = 16,
                                  .layers = 2});
  const std::vector<Segment> segments = find_segments(graph);
  const Cluster cluster = read_cluster("a100-80:1x4");
  for (const char* rules : {
           "",
           "degrees: {tp: [2, 4], micro_batch: {max: 2}}",
           "degrees: {zero: [none, zero1], pp: {min: 2}}",
           "rules: [{match: {factor: ffn}, require: {split: {ffn: [tensor]}}}]",
           "rules: [{match: {factor: hidden}, forbid: {factors: [hidden]}}]",
           "rules: [{match: {kind: linear}, allow: {max_degree: 2, replicate: false}}]",
           "rules: [{match: {kind: rms_norm}, require: {replicate: true}}]",
           "rules: [{match: {kind: embedding}, assign: {stage: last}}, {match: \"layers.1.**\", "
           "recompute: full}]",
           "rules: [{match: \"layers.1.**\", forbid: {stage: 0}}]",
       }) {
    const std::string text = std::string("space: x\ndegrees: {cp: 1}\n") + rules;
    const PlanSpace space =
        parse_space(std::string_view(rules).starts_with("degrees")
                        ? "space: x\ndegrees: {cp: 1, " + std::string(rules).substr(10)
                        : text,
                    "f.yaml");
    const CompiledSpace compiled = compile_space(space, graph, segments);
    const double counted = log10_size(compiled, graph, segments, cluster, 4);
    const double listed = brute_force(compiled, graph, segments, 4, 4);
    if (std::isinf(listed))
      EXPECT_TRUE(std::isinf(counted)) << rules;
    else
      EXPECT_NEAR(counted, listed, 1e-9) << rules;
  }
}

TEST(CountSpace, ContradictionsLeaveNothing) {
  const Graph graph = test_model({});
  const std::vector<Segment> segments = find_segments(graph);
  const CompiledSpace compiled = compile_space(
      parse_space("space: x\nrules: [{match: \"**\", recompute: full}, {match: \"**\", recompute: "
                  "none}]",
                  "f.yaml"),
      graph, segments);
  EXPECT_TRUE(std::isinf(log10_size(compiled, graph, segments, read_cluster("a100-80:1x4"), 16)));
}

}  // namespace
}  // namespace meshwright
