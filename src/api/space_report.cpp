#include "api/space_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/format.h"
#include "plan/refine_classes.h"
#include "report/text_table.h"
#include "search/layout_search.h"
#include "space/conflict.h"
#include "space/count_space.h"

namespace meshwright {
namespace {

constexpr double kSecondsPerQuestion = 5;
constexpr int kMaxQuestions = 400;

std::string verbs(const SpaceRule& r) {
  std::vector<std::string> list;
  if (!r.split.empty() || r.replicate || !r.must_split.empty() || !r.degree.empty()) {
    list.push_back("require");
  }
  if (r.allow) list.push_back("allow");
  if (r.forbid || !r.forbid_placement.empty()) list.push_back("forbid");
  if (!r.assign.empty()) list.push_back("assign");
  if (r.recompute) list.push_back("recompute");
  if (!r.state.empty()) list.push_back("state");
  return fmt::format("{}", fmt::join(list, ", "));
}

// One thing that may be left out of a space or of the options.
struct Part {
  std::string name;
  std::string what;  // In a conflict: what it says.
  std::string place;
  enum Kind { kDegree, kRule, kOrder, kOption } kind;
  std::size_t index = 0;
  std::function<void(Restrictions&)> lift;  // kOption: without it.
};

std::vector<Part> parts_of(const PlanSpace& space) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < space.degrees.size(); ++i) {
    const SpaceDegree& d = space.degrees[i];
    const std::string value = !d.names.empty() ? fmt::format("{}", fmt::join(d.names, ", "))
                              : d.key == "sp" || d.key == "hybrid" ? fmt::format("{}", d.flag)
                                                                   : to_string(d.numbers);
    parts.push_back({"degrees." + d.key, value, d.place, Part::kDegree, i, {}});
  }
  for (std::size_t i = 0; i < space.rules.size(); ++i) {
    const SpaceRule& r = space.rules[i];
    parts.push_back({r.name, verbs(r), r.place, Part::kRule, i, {}});
  }
  for (std::size_t i = 0; i < space.order.size(); ++i) {
    const SpaceOrder& o = space.order[i];
    parts.push_back({o.name,
                     describe(o.rule.before) + " before " + describe(o.rule.after),
                     o.place,
                     Part::kOrder,
                     i,
                     {}});
  }
  return parts;
}

// What the command line pins besides.
void add_options(const Restrictions& r, std::vector<Part>& parts) {
  struct Field {
    const char* option;
    Allowed Restrictions::* field;
  };
  constexpr Field kFields[] = {
      {"--pp", &Restrictions::pp},   {"--vpp", &Restrictions::vpp},
      {"--dp", &Restrictions::dp},   {"--tp", &Restrictions::tp},
      {"--cp", &Restrictions::cp},   {"--ep", &Restrictions::ep},
      {"--etp", &Restrictions::etp}, {"--micro-batch", &Restrictions::micro_batch},
  };
  const auto add = [&](std::string name, std::string what,
                       std::function<void(Restrictions&)> lift) {
    parts.push_back(
        {std::move(name), std::move(what), "command line", Part::kOption, 0, std::move(lift)});
  };
  for (const Field& f : kFields) {
    if (!(r.*f.field).restricts()) continue;
    add(f.option, to_string(r.*f.field), [f](Restrictions& x) { x.*f.field = {}; });
  }
  if (r.sp) add("--no-sp", "", [](Restrictions& x) { x.sp.reset(); });
  if (!r.state.empty()) add("--zero", "", [](Restrictions& x) { x.state.clear(); });
  if (!r.recompute.empty()) add("--recompute", "", [](Restrictions& x) { x.recompute.clear(); });
  if (r.schedule) add("--schedule", *r.schedule, [](Restrictions& x) { x.schedule.reset(); });
}

PlanSpace with_parts(const PlanSpace& space, const std::vector<Part>& parts,
                     const std::vector<char>& active) {
  PlanSpace result = space;
  result.degrees.clear();
  result.rules.clear();
  result.order.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (active[i] == 0) continue;
    const Part& p = parts[i];
    if (p.kind == Part::kDegree) result.degrees.push_back(space.degrees[p.index]);
    if (p.kind == Part::kRule) result.rules.push_back(space.rules[p.index]);
    if (p.kind == Part::kOrder) result.order.push_back(space.order[p.index]);
  }
  return result;
}

std::string power(double log10) {
  return std::isinf(log10) ? "none" : fmt::format("10^{:.1f}", log10);
}

}  // namespace

std::string space_list() {
  std::vector<std::vector<std::string>> rows;
  for (const NamedSpace& named : named_spaces()) {
    const PlanSpace space = parse_space(named.text, "spaces/" + named.name + ".yaml");
    rows.push_back({named.name, space.summary, space.paper});
  }
  return text_table({"space", "what it is", "paper"}, rows, 0, {true, true, true});
}

std::string space_text(const Loaded& loaded) {
  const CompiledSpace& compiled = *loaded.space;
  const PlanSpace& space = compiled.space;
  // Classes before overrides refined them: rules are compiled one by one below.
  const std::vector<Segment> segments = find_segments(loaded.model.graph);
  const std::vector<Part> parts = parts_of(space);
  const auto size_with = [&](const std::vector<char>& active) {
    const CompiledSpace part =
        compile_space(with_parts(space, parts, active), loaded.model.graph, segments);
    return log10_size(part, loaded.model.graph, segments, loaded.cluster,
                      loaded.model.global_batch);
  };
  const double before = size_with(std::vector<char>(parts.size(), 0));
  const double after = size_with(std::vector<char>(parts.size(), 1));
  std::string text = fmt::format("space    {}{}{}\n", space.name, space.summary.empty() ? "" : ": ",
                                 space.summary);
  if (!space.paper.empty()) text += fmt::format("paper    {}\n", space.paper);
  text += fmt::format("model    {}: {} operators\ncluster  {}: {} devices\n\n", loaded.model_name,
                      format_integer(static_cast<long long>(loaded.model.graph.ops.size())),
                      loaded.cluster.name, loaded.cluster.device_count());
  std::vector<std::vector<std::string>> rows;
  for (const SpaceTransform& t : space.transforms) {
    rows.push_back({t.name, t.transform, "", t.factor, ""});
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    std::vector<char> alone(parts.size(), 0);
    alone[i] = 1;
    std::string removed;
    if (p.kind != Part::kOrder) {
      const double size = size_with(alone);
      removed = std::isinf(size) ? "all" : fmt::format("{:.1f}", std::max(before - size, 0.0));
    }
    std::string ops, factors;
    if (p.kind == Part::kRule) {
      const RuleReach& reach = compiled.reach[p.index];
      ops = format_integer(reach.ops);
      factors = fmt::format("{}", fmt::join(reach.factors, ", "));
    }
    const std::string verb = p.kind == Part::kDegree  ? "allow " + p.what
                             : p.kind == Part::kOrder ? "order"
                                                      : p.what;
    rows.push_back({p.name, verb, ops, factors, removed});
  }
  if (!rows.empty()) {
    text += text_table({"rule", "verb", "operators", "factors", "removed"}, rows, 0,
                       {true, true, false, true, false});
    text += "\nremoved  powers of ten that the rule takes away when it stands alone\n";
  }
  text += fmt::format("plans    {} before, {} after\n", power(before), power(after));
  return text;
}

std::string contradiction(const Loaded& loaded) {
  if (!loaded.space) return {};
  std::string clash;
  both(loaded.request.restrictions, loaded.space->restrictions, clash);
  if (clash.empty() && loaded.space->contradictions.empty()) return {};
  return conflict_text(loaded, /*fitting=*/false);
}

std::string conflict_text(const Loaded& loaded, bool fitting) {
  const CompiledSpace& compiled = *loaded.space;
  const PlanSpace& space = compiled.space;
  std::vector<Part> parts = parts_of(space);
  add_options(loaded.request.restrictions, parts);
  const std::vector<Segment> segments = find_segments(loaded.model.graph);
  const auto possible = [&](const std::vector<char>& active) {
    auto part = std::make_shared<CompiledSpace>(
        compile_space(with_parts(space, parts, active), loaded.model.graph, segments));
    if (!part->contradictions.empty()) return false;
    Loaded copy;
    copy.request = loaded.request;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (active[i] == 0 && parts[i].lift) parts[i].lift(copy.request.restrictions);
    }
    std::vector<Segment> refined = segments;
    if (part->overrides) refine_classes(refined, *part->overrides);
    std::string clash;
    const Restrictions restrictions = both(copy.request.restrictions, part->restrictions, clash);
    if (!clash.empty()) return false;
    const Request& r = loaded.request;
    const Problem problem{
        loaded.model.graph, refined,  loaded.cluster, r.training,   loaded.model.global_batch,
        r.cost_model,       r.engine, r.objective,    restrictions, part,
        loaded.profile};
    return any_layout(problem, fitting, kSecondsPerQuestion);
  };
  const Conflict conflict =
      smallest_conflict(static_cast<int>(parts.size()), possible, kMaxQuestions);
  if (conflict.rules.empty()) return {};
  std::string text =
      fmt::format("{} {}:\n",
                  conflict.smallest ? "a smallest set of rules that cannot all hold"
                                    : "rules that cannot all hold (perhaps not the fewest)",
                  fitting ? "in memory" : "together");
  std::vector<std::vector<std::string>> rows;
  for (int i : conflict.rules) {
    const Part& p = parts[static_cast<std::size_t>(i)];
    rows.push_back({"  " + p.name, p.what, p.place});
  }
  text += text_table({"  rule", "says", "where"}, rows, 0, {true, true, true});
  for (const Contradiction& c : compiled.contradictions) {
    const auto holds = [&](const std::string& name) {
      return std::any_of(conflict.rules.begin(), conflict.rules.end(),
                         [&](int i) { return parts[static_cast<std::size_t>(i)].name == name; });
    };
    if (holds(c.first) && holds(c.second)) text += "  " + c.message + "\n";
  }
  return text;
}

}  // namespace meshwright
