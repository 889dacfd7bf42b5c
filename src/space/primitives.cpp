#include "space/primitives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/path_pattern.h"
#include "base/spelling.h"
#include "ops/op_def.h"
#include "space/limits.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxNear = 4;

// The first number among the components of a module path; -1 = none.
std::int64_t layer_of(std::string_view path) {
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && part.size() < 10 &&
        part.find_first_not_of("0123456789") == std::string_view::npos) {
      std::int64_t value = 0;
      for (char c : part) value = value * 10 + (c - '0');
      return value;
    }
    begin = end + 1;
  }
  return -1;
}

bool any_matches(const std::vector<std::string>& patterns, std::string_view path) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return path_matches(pattern, path); });
}

template <class T>
void sort_unique(std::vector<T>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

PlanBuilder::PlanBuilder(const Graph& graph, const std::vector<Segment>& segments)
    : graph_(graph), segments_(segments) {
  segment_of_op_.resize(graph.ops.size());
  representative_.resize(graph.ops.size());
  std::map<int, int> first_of_class;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    const int first = first_of_class.try_emplace(s.shape_class, s.first_op).first->second;
    for (int op = s.first_op; op < s.last_op; ++op) {
      segment_of_op_[static_cast<std::size_t>(op)] = static_cast<int>(i);
      representative_[static_cast<std::size_t>(op)] = first + op - s.first_op;
    }
  }
}

const Rule& PlanBuilder::rule(int op) const {
  const int r = representative(op);
  const auto it = rules_.find(r);
  if (it != rules_.end()) return it->second;
  const Op& o = graph_.ops[static_cast<std::size_t>(r)];
  std::vector<TensorType> types;
  for (ValueId id : o.inputs) types.push_back(graph_.value(id).type);
  return rules_.emplace(r, rule_of(find_op(o.kind), {o.attrs, types, {}})).first->second;
}

std::vector<int> PlanBuilder::find(const OpMatch& m) const {
  for (const std::string& kind : m.kind) find_op(kind);
  for (const auto* patterns : {&m.path, &m.parameter}) {
    for (const std::string& pattern : *patterns) check_path_pattern(pattern);
  }
  const auto fits = [&](int index) {
    const Op& op = graph_.ops[static_cast<std::size_t>(index)];
    if (!m.kind.empty() && std::find(m.kind.begin(), m.kind.end(), op.kind) == m.kind.end()) {
      return false;
    }
    if (!m.layers.empty()) {
      const std::int64_t layer = layer_of(op.name);
      if (std::none_of(m.layers.begin(), m.layers.end(), [&](const auto& range) {
            return layer >= range.first && layer <= range.second;
          }))
        return false;
    }
    if (!m.factor.empty() &&
        std::none_of(m.factor.begin(), m.factor.end(),
                     [&](const std::string& f) { return factor_named(rule(index), f) >= 0; })) {
      return false;
    }
    if (!m.path.empty() && !any_matches(m.path, op.name)) return false;
    return m.parameter.empty() || std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) {
             const Value& value = graph_.value(id);
             return value.kind == ValueKind::kParameter && any_matches(m.parameter, value.name);
           });
  };
  std::vector<int> ops;
  for (int i = 0; i < static_cast<int>(graph_.ops.size()); ++i) {
    if (fits(i)) ops.push_back(i);
  }
  if (!ops.empty()) return ops;

  // Names near the first pattern; one of each place in a layer is enough.
  std::string hint;
  if (!m.path.empty() || !m.parameter.empty()) {
    std::vector<std::string> names;
    for (int i = 0; i < static_cast<int>(graph_.ops.size()); ++i) {
      if (representative(i) != i) continue;
      const Op& op = graph_.ops[static_cast<std::size_t>(i)];
      if (!m.path.empty()) {
        names.push_back(op.name);
      } else {
        for (ValueId id : op.inputs) {
          if (graph_.value(id).kind == ValueKind::kParameter)
            names.push_back(graph_.value(id).name);
        }
      }
    }
    sort_unique(names);
    const std::string& pattern = m.path.empty() ? m.parameter[0] : m.path[0];
    const std::vector<std::string> near = nearest_names(pattern, names, kMaxNear);
    if (near.empty() && names.size() > kMaxNear) names.resize(kMaxNear);
    hint = fmt::format("{}: {}", near.empty() ? "names begin with" : "near names",
                       fmt::join(near.empty() ? names : near, ", "));
  } else if (!m.kind.empty()) {
    std::vector<std::string> kinds;
    for (const Op& op : graph_.ops) kinds.push_back(op.kind);
    sort_unique(kinds);
    hint = fmt::format("the model has {}", fmt::join(kinds, ", "));
  } else if (!m.factor.empty()) {
    std::vector<std::string> labels;
    for (int i = 0; i < static_cast<int>(graph_.ops.size()); ++i) {
      if (representative(i) != i) continue;
      for (const Factor& f : rule(i).factors) labels.push_back(f.label);
    }
    sort_unique(labels);
    hint = fmt::format("the model's factors are {}", fmt::join(labels, ", "));
  }
  throw Error("matches no operator of the model", {}, hint);
}

int PlanBuilder::author(std::string_view name) {
  if (authors_.empty() || authors_.back() != name) authors_.emplace_back(name);
  return static_cast<int>(authors_.size()) - 1;
}

void PlanBuilder::contradict(int first, int second, std::string message) {
  const std::string& a = authors_[static_cast<std::size_t>(first)];
  const std::string& b = authors_[static_cast<std::size_t>(second)];
  // Thousands of operators contradict in the same way.
  for (const Contradiction& c : contradictions_) {
    if (c.first == a && c.second == b) return;
  }
  contradictions_.push_back({a, b, std::move(message)});
}

std::vector<int> PlanBuilder::segments_of(const std::vector<int>& ops) const {
  std::vector<int> list;
  for (int op : ops) {
    if (list.empty() || list.back() != segment_of(op)) list.push_back(segment_of(op));
  }
  return list;
}

std::shared_ptr<const Overrides> PlanBuilder::overrides() const {
  if (told_.empty() && recompute_.empty()) return nullptr;
  auto result = std::make_shared<Overrides>();
  if (!told_.empty()) result->rule_of_op.assign(graph_.ops.size(), -1);
  for (const auto& [op, told] : told_) {
    OpOverride rule;
    rule.replicate = told.replicate >= 0;
    // Dropped splits first: their axes are free for the others.
    for (const bool dropped : {true, false}) {
      for (const auto& [factor, s] : told.splits) {
        if (s.split.axes.empty() == dropped) rule.splits.push_back(s.split);
      }
    }
    const auto it = std::find(result->rules.begin(), result->rules.end(), rule);
    result->rule_of_op[static_cast<std::size_t>(op)] =
        static_cast<std::int32_t>(it - result->rules.begin());
    if (it == result->rules.end()) result->rules.push_back(std::move(rule));
  }
  if (!recompute_.empty()) result->recompute.assign(segments_.size(), -1);
  for (const auto& [segment, mode] : recompute_) {
    result->recompute[static_cast<std::size_t>(segment)] = static_cast<std::int8_t>(mode.first);
  }
  return result;
}

std::vector<int> op_trans(PlanBuilder& b, const OpMatch& match, const OpOverride& choice,
                          std::string_view author) {
  const std::vector<int> ops = b.find(match);
  for (const OpOverride::Split& split : choice.splits) {
    std::vector<std::string> known;
    const bool found = std::any_of(ops.begin(), ops.end(), [&](int op) {
      const int f = factor_named(b.rule(op), split.factor);
      for (const Factor& factor : b.rule(op).factors) known.push_back(factor.label);
      return f >= 0 &&
             (split.axes.empty() ||
              b.rule(op).factors[static_cast<std::size_t>(f)].kind != FactorKind::kFrozen);
    });
    if (found) continue;
    sort_unique(known);
    throw Error(fmt::format("no matched operator has a factor {} that may be split",
                            in_quotes(split.factor)),
                {}, fmt::format("their factors are {}", fmt::join(known, ", ")));
  }
  const int me = b.author(author);
  const auto name = [&](int op) { return b.graph().ops[static_cast<std::size_t>(op)].name; };
  for (int op : ops) {
    const Rule& rule = b.rule(op);
    PlanBuilder::Told& told = b.told_[op];
    if (choice.replicate) {
      for (const auto& [factor, s] : told.splits) {
        const bool mine = std::any_of(
            choice.splits.begin(), choice.splits.end(),
            [&, f = factor](const auto& split) { return factor_named(rule, split.factor) == f; });
        if (s.split.axes.empty() || mine) continue;
        b.contradict(
            s.author, me,
            fmt::format("{} is to be split on {} and to be replicated", name(op), s.split.factor));
      }
      told.replicate = me;
    }
    for (const OpOverride::Split& split : choice.splits) {
      const int f = factor_named(rule, split.factor);
      if (f < 0) continue;
      const auto [it, fresh] = told.splits.try_emplace(f, PlanBuilder::Told::Split{split, me});
      if (!fresh && it->second.split.axes != split.axes) {
        b.contradict(
            it->second.author, me,
            fmt::format("{} is to be split on {} over [{}] and over [{}]", name(op), split.factor,
                        fmt::join(it->second.split.axes, ", "), fmt::join(split.axes, ", ")));
      }
      if (told.replicate >= 0 && told.replicate != me && !split.axes.empty() && fresh) {
        b.contradict(
            told.replicate, me,
            fmt::format("{} is to be replicated and to be split on {}", name(op), split.factor));
      }
      for (const auto& [other, s] : told.splits) {
        if (other == f) continue;
        for (const std::string& axis : split.axes) {
          if (std::find(s.split.axes.begin(), s.split.axes.end(), axis) == s.split.axes.end()) {
            continue;
          }
          b.contradict(s.author, me,
                       fmt::format("axis {} is to split both {} and {} of {}", axis, s.split.factor,
                                   split.factor, name(op)));
        }
      }
    }
  }
  return ops;
}

std::vector<int> op_trans(PlanBuilder& b, const OpMatch& match, Recompute recompute,
                          std::string_view author) {
  const std::vector<int> ops = b.find(match);
  const int me = b.author(author);
  for (int segment : b.segments_of(ops)) {
    const auto [it, fresh] = b.recompute_.try_emplace(segment, recompute, me);
    if (!fresh && it->second.first != recompute) {
      b.contradict(it->second.second, me,
                   fmt::format("recompute of {} is to be {} and {}",
                               b.segments()[static_cast<std::size_t>(segment)].name,
                               recompute_name(it->second.first), recompute_name(recompute)));
    }
  }
  return ops;
}

std::vector<int> op_assign(PlanBuilder& b, const OpMatch& match, const Placement& placement,
                           std::string_view author, bool forbidden) {
  const std::vector<int> ops = b.find(match);
  b.pins_.push_back({std::string(author), b.segments_of(ops), placement, forbidden});
  return ops;
}

namespace {

// A pass as the check below sees it; passes of chunks named by path are kept apart.
struct Pass {
  int phase;
  std::int64_t micro_batch, stage;
  std::string path;
  auto operator<=>(const Pass&) const = default;
};

constexpr std::string_view kPhases[] = {"forward", "backward", "weight"};

int phase_index(std::string_view name) {
  for (int i = 0; i < 3; ++i) {
    if (kPhases[i] == name) return i;
  }
  throw Error(fmt::format("unknown phase {}", in_quotes(name)), {},
              "legal: forward, backward, weight");
}

}  // namespace

// A few micro-batches and stages around the numbers of the rules show every circle: rules shift by
// constants. Of the data flow only what holds for any number of chunks is used: all forward passes
// of a micro-batch come before all of its backward passes.
void op_order(PlanBuilder& b, const OrderPattern& rule, std::string_view) {
  b.order_.push_back(rule);
  std::set<std::int64_t> micro_batches, stages;
  const auto around = [](std::set<std::int64_t>& set, std::int64_t n) {
    for (std::int64_t k = -2; k <= 2; ++k) set.insert(n + k);
  };
  around(micro_batches, 2);
  around(stages, 2);
  for (const OrderPattern& r : b.order_) {
    for (const OrderPoint* p : {&r.before, &r.after}) {
      around(micro_batches, std::abs(p->micro_batch.offset));
      around(stages, p->stage.offset);
    }
  }
  std::map<Pass, std::set<Pass>> after;
  const auto pass = [](const OrderPoint& p, std::int64_t i, std::int64_t s) {
    return Pass{phase_index(p.phase), p.micro_batch.offset + (p.micro_batch.variable ? i : 0),
                p.stage.offset + (p.stage.variable ? s : 0), p.path};
  };
  for (const OrderPattern& r : b.order_) {
    for (std::int64_t i : micro_batches) {
      for (std::int64_t s : stages) {
        const Pass x = pass(r.before, i, s), y = pass(r.after, i, s);
        if (x.micro_batch < 0 || y.micro_batch < 0) continue;
        // Numbers below 0 count from the last stage; s does not go there.
        if (r.before.stage.variable && x.stage < 0) continue;
        if (r.after.stage.variable && y.stage < 0) continue;
        after[x].insert(y);
        after[y];
      }
    }
  }
  std::map<std::int64_t, std::vector<Pass>> forward, backward;
  for (const auto& [p, next] : after) {
    if (p.phase == 0) forward[p.micro_batch].push_back(p);
    if (p.phase == 1) backward[p.micro_batch].push_back(p);
  }
  for (const auto& [i, passes] : forward) {
    for (const Pass& f : passes) after[f].insert(backward[i].begin(), backward[i].end());
  }
  // Depth-first search; 1 = on the way, 2 = done.
  std::map<Pass, int> state;
  for (const auto& [start, unused] : after) {
    if (state[start] != 0) continue;
    std::vector<std::pair<Pass, std::vector<Pass>>> way;
    const auto enter = [&](const Pass& p) {
      state[p] = 1;
      // The lowest is taken first, from the end.
      way.push_back({p, {after[p].rbegin(), after[p].rend()}});
    };
    enter(start);
    while (!way.empty()) {
      auto& [at, left] = way.back();
      if (left.empty()) {
        state[at] = 2;
        way.pop_back();
        continue;
      }
      const Pass next = left.back();
      left.pop_back();
      if (state[next] == 0)
        enter(next);
      else if (state[next] == 1) {
        std::string text;
        bool inside = false;
        for (const auto& [p, rest] : way) {
          inside |= p == next;
          if (!inside) continue;
          text += fmt::format("{} of micro-batch {} on stage {}, ", kPhases[p.phase], p.micro_batch,
                              p.stage);
        }
        throw Error(fmt::format("the orders go round in a circle: {}then {} of micro-batch {} on "
                                "stage {} again",
                                text, kPhases[next.phase], next.micro_batch, next.stage),
                    {}, "the forward passes of a micro-batch come before its backward passes");
      }
    }
  }
}

bool takes_in(const Placement& p, int stage, int stages, const Mesh& mesh, int devices_of_plan) {
  if (p.every_device && mesh.device_count() != devices_of_plan) return false;
  if (!p.stages.empty() && std::none_of(p.stages.begin(), p.stages.end(),
                                        [&](int s) { return (s < 0 ? stages + s : s) == stage; })) {
    return false;
  }
  if (p.devices.empty()) return true;
  AxisList all;
  for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) all.push_back(a);
  const std::vector<DeviceId> devices = mesh.group(all);
  return std::all_of(devices.begin(), devices.end(), [&](DeviceId d) {
    return std::any_of(p.devices.begin(), p.devices.end(), [&](const auto& range) {
      return d.value >= range.first && d.value <= range.second;
    });
  });
}

Plan build(const PlanBuilder& b, const Cluster& cluster, const Training& training,
           std::int64_t global_batch, const Degrees& degrees, const std::vector<int>& cuts) {
  if (!b.contradictions().empty()) {
    const Contradiction& c = b.contradictions()[0];
    throw Error(c.message, c.first == c.second ? c.first : c.first + ", " + c.second);
  }
  Plan plan = make_plan(b.graph(), b.segments(), cluster, training, global_batch, degrees, cuts);
  for (const Chunk& chunk : plan.chunks) {
    for (const SegmentPin& pin : b.pins()) {
      for (int segment : pin.segments) {
        if (segment < chunk.first_segment || segment >= chunk.last_segment) continue;
        const Mesh& mesh = plan.stages[static_cast<std::size_t>(chunk.stage)].mesh;
        if (takes_in(pin.placement, chunk.stage, degrees.pp, mesh, degrees.devices()) !=
            pin.forbidden) {
          continue;
        }
        throw Error(fmt::format("{} runs on stage {}, which it must not",
                                b.segments()[static_cast<std::size_t>(segment)].name, chunk.stage),
                    pin.author);
      }
    }
  }
  plan.overrides = b.overrides();
  plan.order = orders_of(b.order(), plan, b.graph(), b.segments());
  return plan;
}

}  // namespace meshwright
