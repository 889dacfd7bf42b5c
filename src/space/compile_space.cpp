#include "space/compile_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/spelling.h"
#include "plan/schedule.h"
#include "plan/transform.h"
#include "space/limits.h"

namespace meshwright {
namespace {

struct CountField {
  std::string_view key;
  Allowed Restrictions::* field;
};
constexpr CountField kCountFields[] = {
    {"pp", &Restrictions::pp},   {"vpp", &Restrictions::vpp},
    {"dp", &Restrictions::dp},   {"tp", &Restrictions::tp},
    {"cp", &Restrictions::cp},   {"ep", &Restrictions::ep},
    {"etp", &Restrictions::etp}, {"micro_batch", &Restrictions::micro_batch},
};

void read_degrees(const PlanSpace& space, CompiledSpace& compiled) {
  Restrictions& r = compiled.restrictions;
  for (const SpaceDegree& d : space.degrees) {
    const auto count = std::find_if(std::begin(kCountFields), std::end(kCountFields),
                                    [&](const CountField& f) { return f.key == d.key; });
    if (count != std::end(kCountFields)) {
      r.*count->field = d.numbers;
    } else if (d.key == "sp") {
      r.sp = d.flag;
    } else if (d.key == "hybrid") {
      r.hybrid = d.flag;
    } else if (d.key == "zero") {
      for (const std::string& name : d.names) r.state.push_back(parse_state_sharding(name));
      std::sort(r.state.begin(), r.state.end());
    } else if (d.key == "recompute") {
      for (const std::string& name : d.names) r.recompute.push_back(parse_recompute(name));
      std::sort(r.recompute.begin(), r.recompute.end());
    } else {
      for (const std::string& name : d.names) {
        try {
          compiled.schedules.emplace_back(find_schedule(name).name);
        } catch (const Error& e) {
          throw e.within(d.place);
        }
      }
    }
  }
}

// A number of parts that no split of the factor can have is a slip; an upper bound is not.
void check_degree(const PlanBuilder& b, const std::vector<int>& ops, const std::string& factor,
                  const Allowed& degree, RuleReach& reach) {
  std::vector<std::string> known;
  bool found = false;
  std::int64_t most = degree.values.empty() ? degree.min : degree.values.back();
  for (int op : ops) {
    const Rule& rule = b.rule(op);
    const int f = factor_named(rule, factor);
    for (const Factor& other : rule.factors) known.push_back(other.label);
    if (f < 0) continue;
    found = true;
    const Factor& g = rule.factors[static_cast<std::size_t>(f)];
    reach.factors.push_back(g.label);
    if (most > factor_units(g)) {
      throw Error(fmt::format("degree {} is larger than the factor {} of {}, which has {} parts at "
                              "most",
                              most, factor, b.graph().ops[static_cast<std::size_t>(op)].name,
                              factor_units(g)),
                  {}, "legal degrees are " + join(divisors(factor_units(g))));
    }
  }
  if (found) return;
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const std::vector<std::string> near = nearest_names(factor, known, 1);
  throw Error(
      fmt::format("no matched operator has a factor {}", in_quotes(factor)), {},
      fmt::format("{}their factors are {}", near.empty() ? "" : "did you mean " + near[0] + "? ",
                  fmt::join(known, ", ")));
}

// One rule, as calls of the primitives. Returns the operators that it matches.
std::vector<int> run_rule(PlanBuilder& b, const SpaceRule& r, RuleReach& reach) {
  const std::vector<int> ops = b.find(r.match);
  std::vector<FactorDegree> spoken = r.degree;
  const auto mention = [&](const std::vector<std::string>& factors) {
    for (const std::string& f : factors) spoken.push_back({f, {}});
  };
  mention(r.must_split);
  for (const OpOverride::Split& s : r.split) mention({s.factor});
  for (const auto* limit : {&r.allow, &r.forbid}) {
    if (!*limit) continue;
    mention((*limit)->factors);
    spoken.insert(spoken.end(), (*limit)->degree.begin(), (*limit)->degree.end());
  }
  for (const FactorDegree& d : spoken) check_degree(b, ops, d.factor, d.degree, reach);

  if (!r.split.empty() || r.replicate) op_trans(b, r.match, {r.replicate, r.split}, r.name);
  if (r.recompute) op_trans(b, r.match, *r.recompute, r.name);
  if (!r.assign.empty()) op_assign(b, r.match, r.assign, r.name);
  if (!r.forbid_placement.empty()) op_assign(b, r.match, r.forbid_placement, r.name, true);
  return ops;
}

// Recomputing parts one by one takes parts.
void check_parts(const PlanSpace& space, const Graph& graph) {
  if (has_co_shards(graph)) return;
  const auto refuse = [](const std::string& place) {
    throw Error("recompute parts: no operator of the model comes in parts", place,
                "the transform co_shard makes them");
  };
  for (const SpaceDegree& d : space.degrees) {
    if (d.key == "recompute" && std::ranges::count(d.names, recompute_name(Recompute::kParts)) > 0)
      refuse(d.place);
  }
  for (const SpaceRule& r : space.rules) {
    if (r.recompute == Recompute::kParts) refuse(r.place);
  }
}

}  // namespace

CompiledSpace compile_space(const PlanSpace& space, const Graph& graph,
                            const std::vector<Segment>& segments) {
  CompiledSpace compiled;
  compiled.space = space;
  read_degrees(space, compiled);
  check_parts(space, graph);
  PlanBuilder builder(graph, segments);
  std::map<int, std::vector<int>> rules_of_op;
  for (std::size_t i = 0; i < space.rules.size(); ++i) {
    const SpaceRule& rule = space.rules[i];
    RuleReach reach;
    try {
      const std::vector<int> ops = run_rule(builder, rule, reach);
      reach.ops = static_cast<std::int64_t>(ops.size());
      if (rule.limits_splits()) {
        for (int op : ops) rules_of_op[op].push_back(static_cast<int>(i));
      }
    } catch (const Error& e) {
      throw Error(fmt::format("rule {}: {}", rule.name, e.message()), rule.place, e.hint());
    }
    std::sort(reach.factors.begin(), reach.factors.end());
    reach.factors.erase(std::unique(reach.factors.begin(), reach.factors.end()),
                        reach.factors.end());
    compiled.reach.push_back(std::move(reach));
  }
  for (const SpaceOrder& order : space.order) {
    try {
      op_order(builder, order.rule, order.name);
      for (const OrderPoint* p : {&order.rule.before, &order.rule.after}) {
        if (!p->path.empty()) builder.find({.path = {p->path}});
      }
    } catch (const Error& e) {
      throw Error(fmt::format("order {}: {}", order.name, e.message()), order.place, e.hint());
    }
  }
  // Stages that hold matched operators share one state sharding with all others.
  for (std::size_t i = 0; i < space.rules.size(); ++i) {
    if (space.rules[i].state.empty()) continue;
    Restrictions own;
    own.state = space.rules[i].state;
    std::sort(own.state.begin(), own.state.end());
    std::string clash;
    compiled.restrictions = both(compiled.restrictions, own, clash);
    if (!clash.empty()) {
      compiled.contradictions.push_back({space.rules[i].name, space.rules[i].name, clash});
    }
  }
  std::map<std::pair<int, std::vector<int>>, OpGroup> groups;
  for (int op = 0; op < static_cast<int>(graph.ops.size()); ++op) {
    const auto it = rules_of_op.find(op);
    const std::vector<int> rules = it == rules_of_op.end() ? std::vector<int>{} : it->second;
    OpGroup& group = groups[{builder.representative(op), rules}];
    if (group.count++ == 0) group.op = op, group.rules = rules;
  }
  for (auto& [key, group] : groups) compiled.groups.push_back(std::move(group));
  compiled.overrides = builder.overrides();
  compiled.order = builder.order();
  compiled.pins = builder.pins();
  compiled.contradictions.insert(compiled.contradictions.end(), builder.contradictions().begin(),
                                 builder.contradictions().end());
  return compiled;
}

Restrictions both(const Restrictions& a, const Restrictions& b, std::string& clash) {
  Restrictions r = a;
  const auto say = [&](std::string_view key) {
    if (!clash.empty()) return;
    clash = fmt::format("nothing is left of {}", key);
  };
  for (const CountField& f : kCountFields) {
    Allowed& x = r.*f.field;
    const Allowed& y = b.*f.field;
    if (!x.values.empty() && !y.values.empty()) {
      std::vector<std::int64_t> shared;
      std::set_intersection(x.values.begin(), x.values.end(), y.values.begin(), y.values.end(),
                            std::back_inserter(shared));
      x.values = std::move(shared);
      if (x.values.empty()) say(f.key);
    } else if (x.values.empty()) {
      x.values = y.values;
    }
    x.min = std::max(x.min, y.min);
    x.max = std::min(x.max, y.max);
    if (x.max < x.min ||
        (!x.values.empty() &&
         std::none_of(
             x.values.begin(), x.values.end(), [&](std::int64_t v) { return x.contains(v); }))) {
      say(f.key);
    }
  }
  const auto flag = [&](std::optional<bool>& x, const std::optional<bool>& y,
                        std::string_view key) {
    if (x && y && *x != *y) say(key);
    if (!x) x = y;
  };
  flag(r.sp, b.sp, "sp");
  flag(r.hybrid, b.hybrid, "hybrid");
  const auto list = [&](auto& x, const auto& y, std::string_view key) {
    if (y.empty()) return;
    if (x.empty()) {
      x = y;
      return;
    }
    std::erase_if(x, [&](auto v) { return std::find(y.begin(), y.end(), v) == y.end(); });
    if (x.empty()) say(key), x = y;
  };
  list(r.state, b.state, "zero");
  list(r.recompute, b.recompute, "recompute");
  if (r.schedule && b.schedule && *r.schedule != *b.schedule) say("schedule");
  if (!r.schedule) r.schedule = b.schedule;
  r.max_memory = std::min(a.max_memory, b.max_memory);
  if (r.devices == 0) r.devices = b.devices;
  return r;
}

LayoutFilter::LayoutFilter(const CompiledSpace& space, const Graph& graph, const ModelFacts& facts)
    : space_(space), graph_(graph), facts_(facts), tables_(graph) {
  for (std::size_t p = 0; p < space.pins.size(); ++p) {
    for (int segment : space.pins[p].segments) {
      const auto s = static_cast<std::size_t>(segment);
      if (pins_of_segment_.size() <= s) pins_of_segment_.resize(s + 1);
      pins_of_segment_[s].push_back(static_cast<int>(p));
    }
  }
}

bool LayoutFilter::may_run(int segment, int stage, const Degrees& degrees) const {
  const auto s = static_cast<std::size_t>(segment);
  if (s >= pins_of_segment_.size() || pins_of_segment_[s].empty()) return true;
  const Mesh mesh = make_stage(degrees, facts_.all_kv_heads, stage).mesh;
  return std::all_of(pins_of_segment_[s].begin(), pins_of_segment_[s].end(), [&](int p) {
    const SegmentPin& pin = space_.pins[static_cast<std::size_t>(p)];
    return takes_in(pin.placement, stage, degrees.pp, mesh, degrees.devices()) != pin.forbidden;
  });
}

int LayoutFilter::broken_rule(const Degrees& d) {
  const auto rule_named = [&](const std::string& name) {
    for (std::size_t i = 0; i < space_.space.rules.size(); ++i) {
      if (space_.space.rules[i].name == name) return static_cast<int>(i);
    }
    return -1;
  };
  for (const SegmentPin& pin : space_.pins) {
    bool some = false;
    for (int s = 0; s < d.pp && !some; ++s) {
      const Mesh mesh = make_stage(d, facts_.all_kv_heads, s).mesh;
      some = takes_in(pin.placement, s, d.pp, mesh, d.devices()) != pin.forbidden;
    }
    if (!some) return rule_named(pin.author);
  }
  return broken_split(d);
}

int LayoutFilter::broken_split(const Degrees& d) {
  const std::vector<std::int64_t> key = {
      d.tp, d.sp,  d.cp,          d.dp,
      d.ep, d.etp, d.micro_batch, d.zero == StateSharding::kNone ? -1 : d.zero_group};
  const auto [it, fresh] = known_.try_emplace(key, -1);
  if (!fresh) return it->second;
  const Stage stage = make_stage(d, facts_.all_kv_heads, 0);
  const std::int64_t samples = d.micro_batch * d.dp;
  for (const OpGroup& group : space_.groups) {
    if (group.rules.empty()) continue;
    const Op& op = graph_.ops[static_cast<std::size_t>(group.op)];
    const OpDef& def = find_op(op.kind);
    const Rule& rule = tables_.rule(group.op, def, samples);
    std::vector<TensorType> types;
    for (ValueId id : op.inputs) types.push_back(tables_.type(id, samples));
    Strategy strategy = strategy_for(rule, types, stage.roles, stage.mesh, def.ring);
    const int override_index =
        space_.overrides == nullptr || space_.overrides->rule_of_op.empty()
            ? -1
            : space_.overrides->rule_of_op[static_cast<std::size_t>(group.op)];
    // Of an operator that is overridden, blame the first rule that splits.
    const int blamed = [&] {
      for (int r : group.rules) {
        if (!space_.space.rules[static_cast<std::size_t>(r)].split.empty()) return r;
      }
      return group.rules[0];
    }();
    if (override_index >= 0) {
      try {
        strategy = overridden(strategy, rule,
                              space_.overrides->rules[static_cast<std::size_t>(override_index)],
                              stage.roles, stage.mesh);
        std::vector<TensorType> results;
        for (ValueId id : op.outputs) results.push_back(tables_.type(id, samples));
        check_strategy(strategy, rule, types, results, stage.mesh);
      } catch (const Error&) {
        // Too many parts, parts that are no intervals, or an axis that this mesh lacks.
        return it->second = blamed;
      }
      // State is sharded over axes that split no parameter.
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        if (graph_.value(op.inputs[k]).kind != ValueKind::kParameter) continue;
        const Sharding sharding = input_sharding(rule, strategy, k);
        for (const AxisList& axes : sharding.dims) {
          if ((axes.mask() & stage.state_axes.mask()) != 0) return it->second = blamed;
        }
      }
    }
    for (int r : group.rules) {
      if (!obeys(space_.space.rules[static_cast<std::size_t>(r)], rule, strategy, stage.roles,
                 stage.mesh)) {
        return it->second = r;
      }
    }
  }
  return -1;
}

}  // namespace meshwright
