#include <fmt/format.h>
#include <fmt/ranges.h>

#include "space/plan_space.h"

namespace meshwright {
namespace {

// A text in double quotes, as YAML reads it back.
std::string double_quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

std::string list_of(const std::vector<std::string>& items) {
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string quoted_list(const std::vector<std::string>& items) {
  std::vector<std::string> texts;
  for (const std::string& item : items) texts.push_back(double_quoted(item));
  return list_of(texts);
}

template <class Number>
std::string ranges(const std::vector<std::pair<Number, Number>>& list) {
  std::vector<std::string> texts;
  for (const auto& [first, last] : list) {
    texts.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
  }
  return list_of(texts);
}

std::string degrees_of(const std::vector<FactorDegree>& degrees) {
  std::vector<std::string> texts;
  for (const FactorDegree& d : degrees) {
    texts.push_back(fmt::format("{}: {}", double_quoted(d.factor), to_string(d.degree)));
  }
  return fmt::format("{{{}}}", fmt::join(texts, ", "));
}

std::string map_of(const std::vector<std::string>& entries) {
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

void add_placement(std::vector<std::string>& entries, const Placement& p) {
  if (!p.stages.empty()) {
    std::vector<std::string> stages;
    for (int s : p.stages) {
      stages.push_back(s == 0 ? "first" : s == -1 ? "last" : fmt::format("{}", s));
    }
    entries.push_back("stage: " + list_of(stages));
  }
  if (!p.devices.empty()) entries.push_back("devices: " + ranges(p.devices));
  if (p.every_device) entries.push_back("devices: all");
}

std::string match_of(const OpMatch& m) {
  std::vector<std::string> entries;
  if (!m.path.empty()) entries.push_back("path: " + quoted_list(m.path));
  if (!m.kind.empty()) entries.push_back("kind: " + quoted_list(m.kind));
  if (!m.layers.empty()) entries.push_back("layers: " + ranges(m.layers));
  if (!m.parameter.empty()) entries.push_back("parameter: " + quoted_list(m.parameter));
  if (!m.factor.empty()) entries.push_back("factor: " + quoted_list(m.factor));
  return map_of(entries);
}

std::string require_of(const SpaceRule& r) {
  std::vector<std::string> entries;
  if (!r.split.empty()) {
    std::vector<std::string> splits;
    for (const OpOverride::Split& s : r.split) {
      splits.push_back(fmt::format("{}: {}", double_quoted(s.factor), list_of(s.axes)));
    }
    entries.push_back("split: " + map_of(splits));
  }
  if (r.replicate) entries.push_back("replicate: true");
  if (!r.must_split.empty()) entries.push_back("factors: " + quoted_list(r.must_split));
  if (!r.degree.empty()) entries.push_back("degree: " + degrees_of(r.degree));
  return entries.empty() ? std::string() : map_of(entries);
}

std::string limit_of(const SplitLimit& l, const Placement& placement) {
  std::vector<std::string> entries;
  if (!l.factors.empty()) entries.push_back("factors: " + quoted_list(l.factors));
  if (!l.axes.empty()) entries.push_back("axes: " + list_of(l.axes));
  if (!l.degree.empty()) entries.push_back("degree: " + degrees_of(l.degree));
  if (l.max_degree != 0) entries.push_back(fmt::format("max_degree: {}", l.max_degree));
  if (l.replicate) entries.push_back(fmt::format("replicate: {}", *l.replicate));
  add_placement(entries, placement);
  return map_of(entries);
}

std::string point_of(const OrderPoint& p) {
  std::string text = fmt::format("{{phase: {}", p.phase);
  text += ", micro_batch: " + to_string(p.micro_batch, "i");
  text += ", stage: " + to_string(p.stage, "s");
  if (!p.path.empty()) text += ", path: " + double_quoted(p.path);
  return text + "}";
}

}  // namespace

std::string to_string(const Allowed& a) {
  if (!a.values.empty()) return fmt::format("[{}]", fmt::join(a.values, ", "));
  if (a.pinned()) return fmt::format("{}", a.min);
  const bool bounded = a.max < std::int64_t{1} << 40;
  if (a.min > 1 && bounded) return fmt::format("{{min: {}, max: {}}}", a.min, a.max);
  if (bounded) return fmt::format("{{max: {}}}", a.max);
  return a.min > 1 ? fmt::format("{{min: {}}}", a.min) : "any";
}

std::string to_string(const OrderPoint::Index& index, std::string_view variable) {
  if (!index.variable) return fmt::format("{}", index.offset);
  if (index.offset == 0) return std::string(variable);
  return fmt::format("{}{:+}", variable, index.offset);
}

std::string describe(const OrderPoint& p) {
  std::string text = fmt::format("{} of micro-batch {} on stage {}", p.phase,
                                 to_string(p.micro_batch, "i"), to_string(p.stage, "s"));
  if (!p.path.empty()) text += " with " + p.path;
  return text;
}

std::string print_space(const PlanSpace& s) {
  std::string text = fmt::format("space: {}\n", double_quoted(s.name));
  if (!s.paper.empty()) text += fmt::format("paper: {}\n", double_quoted(s.paper));
  if (!s.summary.empty()) text += fmt::format("summary: {}\n", double_quoted(s.summary));
  if (!s.degrees.empty()) text += "degrees:\n";
  for (const SpaceDegree& d : s.degrees) {
    text += fmt::format("  {}: {}\n", d.key,
                        !d.names.empty()                     ? quoted_list(d.names)
                        : d.key == "sp" || d.key == "hybrid" ? fmt::format("{}", d.flag)
                                                             : to_string(d.numbers));
  }
  if (!s.transforms.empty()) text += "transforms:\n";
  for (const SpaceTransform& t : s.transforms) {
    text += fmt::format("  - {{name: {}, op_trans: {}, match: {}, factor: {}, parts: {}}}\n",
                        double_quoted(t.name), t.transform, double_quoted(t.match),
                        double_quoted(t.factor), t.parts);
  }
  if (!s.rules.empty()) text += "rules:\n";
  for (const SpaceRule& r : s.rules) {
    text += fmt::format("  - name: {}\n    match: {}\n", double_quoted(r.name), match_of(r.match));
    if (const std::string require = require_of(r); !require.empty()) {
      text += "    require: " + require + "\n";
    }
    if (r.allow) text += "    allow: " + limit_of(*r.allow, {}) + "\n";
    if (r.forbid || !r.forbid_placement.empty()) {
      text += "    forbid: " + limit_of(r.forbid.value_or(SplitLimit{}), r.forbid_placement) + "\n";
    }
    if (!r.assign.empty()) {
      std::vector<std::string> entries;
      add_placement(entries, r.assign);
      text += "    assign: " + map_of(entries) + "\n";
    }
    if (r.recompute) text += fmt::format("    recompute: {}\n", recompute_name(*r.recompute));
    if (!r.state.empty()) {
      std::vector<std::string> names;
      for (StateSharding state : r.state) names.emplace_back(state_sharding_name(state));
      text += "    state: " + list_of(names) + "\n";
    }
  }
  if (!s.order.empty()) text += "order:\n";
  for (const SpaceOrder& o : s.order) {
    text += fmt::format("  - {{name: {}, before: {}, after: {}}}\n", double_quoted(o.name),
                        point_of(o.rule.before), point_of(o.rule.after));
  }
  return text;
}

}  // namespace meshwright
