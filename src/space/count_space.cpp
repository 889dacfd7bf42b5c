// Counting the plans of a space.
//
// Idea: layouts that have the same mesh share the strategies of their operators, and isomorphic
// operators under the same rules share a count, so the product over all operators is a sum of
// multiples of few logarithms. Pipeline cuts are counted by a running sum per chunk.
// Complexity: meshes * groups * (factors + 1)^(axes), axes <= 7; an operator without rules is
// counted once for each list of factor sizes and axis sizes.
#include "space/count_space.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/check.h"
#include "plan/schedule.h"
#include "space/limits.h"

namespace meshwright {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// log10(10^a + 10^b).
double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return std::isinf(a) ? a : a + std::log10(1 + std::pow(10, b - a));
}

// Gives the axes from `axis` on to factors or to none, and counts what every rule accepts.
class StrategyCount {
 public:
  StrategyCount(const Rule& rule, const Stage& stage, const std::vector<const SpaceRule*>& rules,
                Strategy strategy, std::uint32_t taken)
      : rule_(rule), stage_(stage), rules_(rules), strategy_(std::move(strategy)), taken_(taken) {
    for (std::size_t i = 0; i < rule.factors.size(); ++i) {
      const Factor& f = rule.factors[i];
      parts_.push_back(1);
      if (f.kind != FactorKind::kFrozen && factor_units(f) > 1) free_.push_back(i);
    }
  }

  double run(std::size_t axis = 0) {
    const Mesh& mesh = stage_.mesh;
    if (axis == mesh.axes.size()) {
      return std::all_of(rules_.begin(), rules_.end(), [&](const SpaceRule* r) {
        return obeys(*r, rule_, strategy_, stage_.roles, mesh);
      });
    }
    double count = run(axis + 1);
    if ((taken_ >> axis & 1u) != 0) return count;
    for (std::size_t f : free_) {
      const Factor& factor = rule_.factors[f];
      const std::int64_t parts = parts_[f] * mesh.axes[axis].size;
      if (parts > factor_units(factor)) continue;
      const AxisList before = strategy_.factors[f];
      const std::int64_t fewer = parts_[f];
      strategy_.factors[f].push_back(static_cast<int>(axis));
      parts_[f] = parts;
      count += run(axis + 1);
      strategy_.factors[f] = before;
      parts_[f] = fewer;
    }
    return count;
  }

 private:
  const Rule& rule_;
  const Stage& stage_;
  const std::vector<const SpaceRule*>& rules_;
  Strategy strategy_;
  std::uint32_t taken_;
  std::vector<std::size_t> free_;
  std::vector<std::int64_t> parts_;
};

// The split of frozen sequence factors that the context role implies.
Strategy ring_of(const OpDef& def, const Rule& rule, const std::vector<TensorType>& inputs,
                 const Stage& stage) {
  Strategy ring = strategy_for(rule, inputs, stage.roles, stage.mesh, def.ring);
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    if (rule.factors[i].kind != FactorKind::kFrozen) ring.factors[i] = {};
  }
  return ring;
}

class SpaceCounter {
 public:
  SpaceCounter(const CompiledSpace& space, const Graph& graph, const std::vector<Segment>& segments,
               const Cluster& cluster, std::int64_t global_batch)
      : space_(space),
        graph_(graph),
        segments_(segments),
        cluster_(cluster),
        global_batch_(global_batch),
        facts_(model_facts(graph, segments)),
        filter_(space, graph, facts_),
        tables_(graph) {}

  double run();

 private:
  void visit(Degrees d);
  double strategies(const Degrees& d);
  double cuts(const Degrees& d, const Schedule& schedule);
  double recomputes() const;
  std::int64_t states(const Degrees& d) const;
  std::vector<const Schedule*> schedules(const Degrees& d) const;

  const CompiledSpace& space_;
  const Graph& graph_;
  const std::vector<Segment>& segments_;
  const Cluster& cluster_;
  const std::int64_t global_batch_;
  ModelFacts facts_;
  LayoutFilter filter_;
  MicroBatchTables tables_;
  std::map<std::vector<std::int64_t>, double> by_mesh_, by_sizes_, by_cut_;
  double total_ = kNothing;
};

double SpaceCounter::strategies(const Degrees& d) {
  std::vector<std::int64_t> key = {d.tp, d.cp, d.dp, d.ep, d.etp, d.micro_batch};
  const auto [it, fresh] = by_mesh_.try_emplace(key, 0);
  if (!fresh) return it->second;
  const Stage stage = make_stage(d, facts_.all_kv_heads, 0);
  const std::int64_t samples = d.micro_batch * d.dp;
  double sum = 0;
  for (const OpGroup& group : space_.groups) {
    const Op& op = graph_.ops[static_cast<std::size_t>(group.op)];
    const OpDef& def = find_op(op.kind);
    const Rule& rule = tables_.rule(group.op, def, samples);
    std::vector<TensorType> types;
    for (ValueId id : op.inputs) types.push_back(tables_.type(id, samples));
    std::vector<const SpaceRule*> rules;
    for (int r : group.rules) rules.push_back(&space_.space.rules[static_cast<std::size_t>(r)]);
    const bool ring = ring_of(def, rule, types, stage).ring;
    double count = 0;
    if (rules.empty() && !ring) {
      std::vector<std::int64_t> sizes;
      for (const Factor& f : rule.factors) {
        if (f.kind != FactorKind::kFrozen && factor_units(f) > 1) sizes.push_back(factor_units(f));
      }
      std::sort(sizes.begin(), sizes.end());
      sizes.push_back(0);
      for (const MeshAxis& axis : stage.mesh.axes) sizes.push_back(axis.size);
      const auto [known, unknown] = by_sizes_.try_emplace(std::move(sizes), 0);
      if (unknown) known->second = count_strategies(def, rule, types, stage, rules);
      count = known->second;
    } else {
      count = count_strategies(def, rule, types, stage, rules);
    }
    sum += static_cast<double>(group.count) * std::log10(count);
  }
  return it->second = sum;
}

double SpaceCounter::cuts(const Degrees& d, const Schedule& schedule) {
  const int chunks = d.pp * d.vpp;
  std::vector<std::int64_t> key = {d.pp, d.vpp};
  if (filter_.pins_segments()) {
    const auto all = all_schedules();
    const auto index = std::find(all.begin(), all.end(), &schedule) - all.begin();
    key.insert(key.end(), {d.tp, d.cp, d.dp, d.ep, d.etp, index});
  }
  const auto [it, fresh] = by_cut_.try_emplace(key, 0);
  if (!fresh) return it->second;
  const std::size_t n = segments_.size();
  // ways[e]: the chunks so far end before segment e.
  const ScheduleShape shape{.stages = d.pp, .chunks_per_stage = d.vpp};
  std::vector<long double> ways(n + 1, 0);
  ways[0] = 1;
  for (int c = 0; c < chunks; ++c) {
    std::vector<long double> next(n + 1, 0);
    long double running = 0;
    for (std::size_t i = 0; i < n; ++i) {
      running += ways[i];
      for (int r = 0; r < schedule.replicas; ++r) {
        const int stage = schedule.stage_of(shape, r * chunks + c);
        if (!filter_.may_run(static_cast<int>(i), stage, d)) running = 0;
      }
      const bool last = c + 1 == chunks;
      const bool may_end = i + 1 == n ? last : !last && segments_[i].is_layer;
      if (may_end) next[i + 1] = running;
    }
    ways = std::move(next);
  }
  return it->second = static_cast<double>(std::log10(ways[n]));
}

double SpaceCounter::recomputes() const {
  const auto& allowed = space_.restrictions.recompute;
  const double choices = allowed.empty() ? 3 : static_cast<double>(allowed.size());
  double sum = 0;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const bool told = space_.overrides != nullptr && i < space_.overrides->recompute.size() &&
                      space_.overrides->recompute[i] >= 0;
    if (!told) sum += std::log10(choices);
  }
  return sum;
}

// State shardings, each over all replicas; the full one also over those of a host.
std::int64_t SpaceCounter::states(const Degrees& d) const {
  const Restrictions& r = space_.restrictions;
  const int host =
      static_cast<int>(cluster_.device_count() / std::max<std::size_t>(cluster_.hosts.size(), 1));
  const int inside = host / d.tp;
  const int replicas = d.dp * d.cp;
  const bool hybrid =
      inside > 1 && inside < replicas && replicas % inside == 0 && inside % d.cp == 0;
  std::int64_t count = 0;
  for (StateSharding s : {StateSharding::kNone, StateSharding::kZero1, StateSharding::kZero2,
                          StateSharding::kZero3}) {
    if (!r.state.empty() && std::find(r.state.begin(), r.state.end(), s) == r.state.end()) continue;
    if (r.hybrid != true) ++count;
    if (s == StateSharding::kZero3 && hybrid && r.hybrid != false) ++count;
  }
  return count;
}

std::vector<const Schedule*> SpaceCounter::schedules(const Degrees& d) const {
  std::vector<const Schedule*> list;
  for (const Schedule* schedule : all_schedules()) {
    const auto& allowed = space_.schedules;
    if (!allowed.empty() &&
        std::find(allowed.begin(), allowed.end(), schedule->name) == allowed.end()) {
      continue;
    }
    // Of a schedule of rounds, named as such, the degrees are legal when those of a pipeline are.
    const bool rounds = schedule->vpp_max == 0;
    if (rounds && allowed.empty()) continue;
    if (d.vpp < schedule->vpp_min || d.vpp > std::max(schedule->vpp_max, 1)) continue;
    if (rounds) {
      if (d.pp > 1 && degrees_legal(facts_, cluster_.device_count(), global_batch_, d, "1f1b"))
        list.push_back(schedule);
      continue;
    }
    if (degrees_legal(facts_, cluster_.device_count(), global_batch_, d, schedule->name)) {
      list.push_back(schedule);
    }
  }
  return list;
}

void SpaceCounter::visit(Degrees d) {
  const Restrictions& r = space_.restrictions;
  for (std::int64_t mbs : divisors(global_batch_ / d.dp)) {
    if (!r.micro_batch.contains(mbs)) continue;
    d.micro_batch = mbs;
    for (int vpp = 1; d.pp * vpp <= std::max(facts_.layers, 1); ++vpp) {
      d.vpp = vpp;
      if (!r.vpp.contains(vpp)) continue;
      for (const Schedule* schedule : schedules(d)) {
        const double choices = static_cast<double>(states(d));
        if (choices == 0) continue;
        if (schedule->vpp_max == 0) {
          // Cuts and strategies follow from the model's rounds and the degrees.
          const auto& modes = space_.restrictions.recompute;
          const double recomputes = modes.empty() ? 3 : static_cast<double>(modes.size());
          total_ = log_add(total_, std::log10(choices * recomputes));
          continue;
        }
        const double log_cuts = cuts(d, *schedule);
        if (std::isinf(log_cuts)) continue;
        total_ = log_add(total_, std::log10(choices) + log_cuts + recomputes() + strategies(d));
      }
    }
  }
}

double SpaceCounter::run() {
  if (!space_.contradictions.empty()) return kNothing;
  const Restrictions& r = space_.restrictions;
  const int devices = r.devices != 0 ? r.devices : cluster_.device_count();
  for (std::int64_t tp : divisors(devices)) {
    if (!r.tp.contains(tp)) continue;
    for (std::int64_t cp : divisors(devices / tp)) {
      if (!r.cp.contains(cp)) continue;
      for (std::int64_t pp : divisors(devices / (tp * cp))) {
        const std::int64_t dp = devices / (tp * cp * pp);
        if (!r.pp.contains(pp) || !r.dp.contains(dp) || global_batch_ % dp != 0) continue;
        Degrees d;
        d.tp = static_cast<int>(tp);
        d.cp = static_cast<int>(cp);
        d.pp = static_cast<int>(pp);
        d.dp = static_cast<int>(dp);
        for (std::int64_t ep : divisors(std::max<std::int64_t>(facts_.experts, 1))) {
          if (!r.ep.contains(ep)) continue;
          for (std::int64_t etp : divisors(facts_.experts == 0 ? 1 : tp)) {
            if (!r.etp.contains(etp)) continue;
            d.ep = static_cast<int>(ep);
            d.etp = static_cast<int>(etp);
            d.micro_batch = 1;
            d.vpp = 1;
            // Cheap test before micro-batches are tried.
            if (experts_refine(d)) visit(d);
          }
        }
      }
    }
  }
  return total_;
}

}  // namespace

double count_strategies(const OpDef& def, const Rule& rule, const std::vector<TensorType>& inputs,
                        const Stage& stage, const std::vector<const SpaceRule*>& rules) {
  Strategy none;
  none.factors.resize(rule.factors.size());
  double count = StrategyCount(rule, stage, rules, none, 0).run();
  const Strategy ring = ring_of(def, rule, inputs, stage);
  if (ring.ring) {
    std::uint32_t taken = 0;
    for (const AxisList& axes : ring.factors) taken |= axes.mask();
    count += StrategyCount(rule, stage, rules, ring, taken).run();
  }
  return count;
}

double log10_size(const CompiledSpace& space, const Graph& graph,
                  const std::vector<Segment>& segments, const Cluster& cluster,
                  std::int64_t global_batch) {
  return SpaceCounter(space, graph, segments, cluster, global_batch).run();
}

}  // namespace meshwright
