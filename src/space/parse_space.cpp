#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "base/path_pattern.h"
#include "base/spelling.h"
#include "cluster/yaml_fields.h"
#include "space/plan_space.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxRules = 256;
constexpr std::size_t kMaxList = 256;
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 40;

constexpr std::string_view kCounts[] = {"pp", "vpp", "dp", "tp", "cp", "ep", "etp", "micro_batch"};
constexpr std::string_view kRoleNames[] = {
    "data", "context", "tensor", "expert", "expert_data", "expert_tensor", "expert_context"};

// Every function reads one construct; the source is needed everywhere for places.
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {}

  PlanSpace space(const YAML::Node& node);

 private:
  std::string place(const YAML::Node& node) const { return yaml_place(node, source_); }
  [[noreturn]] void fail(const YAML::Node& node, std::string message, std::string hint = {}) const {
    throw Error(std::move(message), place(node), std::move(hint));
  }

  // A mapping, with near spellings for keys that it must not have.
  YamlFields fields(const YAML::Node& node, std::string_view what,
                    std::vector<std::string_view> legal) const {
    if (node.IsMap()) {
      for (const auto& entry : node) {
        const std::string key = yaml_scalar(entry.first, source_, "a key");
        if (std::find(legal.begin(), legal.end(), key) != legal.end()) continue;
        fail(entry.first, fmt::format("unknown key {} in {}", in_quotes(key), what),
             near(key, {legal.begin(), legal.end()}, "legal keys"));
      }
    }
    return YamlFields(node, source_, what, legal);
  }

  static std::string near(std::string_view word, const std::vector<std::string>& legal,
                          std::string_view what) {
    const std::vector<std::string> names = nearest_names(word, legal, 1);
    return fmt::format("{}{}: {}", names.empty() ? "" : "did you mean " + names[0] + "? ", what,
                       fmt::join(legal, ", "));
  }

  std::string one_of(const YAML::Node& node, std::string_view what,
                     const std::vector<std::string>& legal) const {
    const std::string text = yaml_scalar(node, source_, what);
    if (std::find(legal.begin(), legal.end(), text) == legal.end()) {
      fail(node, fmt::format("unknown {} {}", what, in_quotes(text)), near(text, legal, "legal"));
    }
    return text;
  }

  bool flag(const YAML::Node& node, std::string_view what) const {
    const std::string text = yaml_scalar(node, source_, what);
    if (text != "true" && text != "false") {
      fail(node, fmt::format("{} is {}, which must be true or false", what, in_quotes(text)));
    }
    return text == "true";
  }

  std::int64_t integer(const YAML::Node& node, std::string_view what, std::int64_t low,
                       std::int64_t high) const {
    const std::string text = yaml_scalar(node, source_, what);
    std::int64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
      fail(node, fmt::format("{} is {}, which must be a whole number from {} to {}", what,
                             in_quotes(text), format_integer(low), format_integer(high)));
    }
    return value;
  }

  // A list, or a single entry without brackets.
  std::vector<YAML::Node> items(const YAML::Node& node, std::string_view what) const {
    if (!node.IsSequence()) return {node};
    if (node.size() == 0) fail(node, fmt::format("{} is an empty list", what));
    if (node.size() > kMaxList) {
      fail(node, fmt::format("{} has more than {} entries", what, kMaxList));
    }
    std::vector<YAML::Node> list;
    for (const YAML::Node& item : node) list.push_back(item);
    return list;
  }

  template <class Read>
  auto list(const YAML::Node& node, std::string_view what, Read&& read) const {
    std::vector<decltype(read(node))> values;
    for (const YAML::Node& item : items(node, what)) values.push_back(read(item));
    return values;
  }

  std::string word(const YAML::Node& node, std::string_view what) const {
    const std::string text = yaml_scalar(node, source_, what);
    const bool legal =
        !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '_' || c == '-' || c == '.';
        });
    if (!legal) {
      fail(node, fmt::format("{} {} is not a name", what, in_quotes(text)),
           "a name has 1 to 64 letters, digits, -, _ and .");
    }
    return text;
  }

  std::string line(const YamlFields& f, std::string_view key) const {
    if (!f.has(key)) return {};
    const std::string text = f.text(key);
    if (text.size() > 400) fail(f.at(key), fmt::format("{} has more than 400 bytes", key));
    if (text.find_first_of("\n\r\t") != std::string::npos) {
      fail(f.at(key), fmt::format("{} is more than one line", key));
    }
    return text;
  }

  std::string glob(const YAML::Node& node, std::string_view what) const {
    const std::string text = yaml_scalar(node, source_, what);
    try {
      check_path_pattern(text);
      return text;
    } catch (const Error& e) {
      fail(node, e.message(), e.hint());
    }
  }

  std::string axis(const YAML::Node& node) const {
    const std::string text = yaml_scalar(node, source_, "an axis");
    const std::string_view kind = std::string_view(text).substr(0, 2);
    const bool numbered = (kind == "dp" || kind == "cp" || kind == "tp") && text.size() <= 3 &&
                          text.find_first_not_of("0123456789", 2) == std::string::npos;
    if (!numbered &&
        std::find(std::begin(kRoleNames), std::end(kRoleNames), text) == std::end(kRoleNames)) {
      std::vector<std::string> legal(std::begin(kRoleNames), std::end(kRoleNames));
      legal.insert(legal.end(), {"dp", "cp", "tp"});
      fail(node, fmt::format("unknown axis {}", in_quotes(text)),
           near(text, legal, "legal") + ", or one of their axes: tp0, tp1, …");
    }
    return text;
  }

  std::vector<std::string> axes(const YAML::Node& node) const {
    if (node.IsSequence() && node.size() == 0) return {};
    const auto names = list(node, "axes", [&](const YAML::Node& n) { return axis(n); });
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
          names.begin() + static_cast<std::ptrdiff_t>(i)) {
        fail(node, fmt::format("axis {} appears twice", names[i]));
      }
    }
    return names;
  }

  // A range "0-15" or a single number.
  std::pair<std::int64_t, std::int64_t> range(const YAML::Node& node, std::string_view what) const {
    const std::string text = yaml_scalar(node, source_, what);
    const std::size_t dash = text.find('-');
    const auto number = [&](std::string_view part) {
      std::int64_t value = 0;
      const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), value);
      if (status != std::errc{} || end != part.data() + part.size() || value < 0 ||
          value > (1 << 24)) {
        fail(node, fmt::format("{} {} is no number or range of numbers", what, in_quotes(text)),
             "write 3 or 0-15");
      }
      return value;
    };
    const std::string_view view = text;
    const std::int64_t first = number(view.substr(0, std::min(dash, view.size())));
    const std::int64_t last = dash == std::string::npos ? first : number(view.substr(dash + 1));
    if (last < first) {
      fail(node, fmt::format("{} {} ends before it begins", what, in_quotes(text)));
    }
    return {first, last};
  }

  Allowed allowed(const YAML::Node& node, std::string_view what) const {
    Allowed result;
    if (node.IsMap()) {
      const YamlFields f = fields(node, what, {"min", "max"});
      if (f.has("min")) result.min = integer(f.at("min"), "min", 1, kMaxNumber);
      if (f.has("max")) result.max = integer(f.at("max"), "max", 1, kMaxNumber);
      if (result.max < result.min) {
        fail(node, fmt::format("{} allows nothing: min {} is more than max {}", what, result.min,
                               result.max));
      }
      return result;
    }
    if (node.IsScalar() && node.Scalar() == "any") return result;
    result.values =
        list(node, what, [&](const YAML::Node& n) { return integer(n, what, 1, kMaxNumber); });
    std::sort(result.values.begin(), result.values.end());
    result.values.erase(std::unique(result.values.begin(), result.values.end()),
                        result.values.end());
    result.min = result.values.front();
    result.max = result.values.back();
    if (result.values.size() == 1) result.values.clear();
    return result;
  }

  std::vector<FactorDegree> factor_degrees(const YAML::Node& node) const {
    if (!node.IsMap()) {
      fail(node, "degree must be a mapping of factors to numbers of parts",
           "degree: {ffn: [2, 4]}");
    }
    std::vector<FactorDegree> result;
    for (const auto& entry : node) {
      const std::string factor = word(entry.first, "a factor");
      result.push_back({factor, allowed(entry.second, factor)});
    }
    if (result.size() > kMaxList) fail(node, "degree has too many entries");
    return result;
  }

  std::vector<std::string> words(const YAML::Node& node, std::string_view what) const {
    return list(node, what, [&](const YAML::Node& n) { return word(n, what); });
  }

  OpMatch match(const YAML::Node& node) const {
    if (node.IsScalar()) return {.path = {glob(node, "a match")}};
    const YamlFields f = fields(node, "a match", {"path", "kind", "layers", "parameter", "factor"});
    OpMatch m;
    if (f.has("path")) {
      m.path = list(f.at("path"), "path", [&](const YAML::Node& n) { return glob(n, "path"); });
    }
    if (f.has("kind")) m.kind = words(f.at("kind"), "kind");
    if (f.has("parameter")) {
      m.parameter = list(f.at("parameter"), "parameter",
                         [&](const YAML::Node& n) { return glob(n, "parameter"); });
    }
    if (f.has("factor")) m.factor = words(f.at("factor"), "factor");
    if (f.has("layers")) {
      m.layers =
          list(f.at("layers"), "layers", [&](const YAML::Node& n) { return range(n, "layers"); });
    }
    if (m == OpMatch{})
      fail(node, "a match needs one of its keys", "\"**\" matches every operator");
    return m;
  }

  void require(const YAML::Node& node, SpaceRule& rule) const {
    const YamlFields f = fields(node, "require", {"split", "replicate", "factors", "degree"});
    if (f.has("split")) {
      const YAML::Node split = f.at("split");
      if (!split.IsMap()) {
        fail(split, "split must be a mapping of factors to axes", "split: {ffn: [tensor]}");
      }
      std::set<std::string> taken;
      for (const auto& entry : split) {
        rule.split.push_back({word(entry.first, "a factor"), axes(entry.second)});
        for (const std::string& name : rule.split.back().axes) {
          if (!taken.insert(name).second) {
            fail(entry.second, fmt::format("axis {} splits two factors at once", name));
          }
        }
      }
    }
    if (f.has("replicate") && !flag(f.at("replicate"), "replicate")) {
      fail(f.at("replicate"), "require replicate is true or absent",
           "forbid: {replicate: true} keeps operators from being replicated");
    }
    rule.replicate = f.has("replicate");
    if (f.has("factors")) rule.must_split = words(f.at("factors"), "factors");
    if (f.has("degree")) rule.degree = factor_degrees(f.at("degree"));
    if (rule.split.empty() && !rule.replicate && rule.must_split.empty() && rule.degree.empty()) {
      fail(node, "require requires nothing", "keys: split, replicate, factors, degree");
    }
  }

  SplitLimit limit(const YAML::Node& node, std::string_view verb, SpaceRule& rule) const {
    const bool allow = verb == "allow";
    const YamlFields f =
        allow ? fields(node, verb, {"factors", "axes", "degree", "max_degree", "replicate"})
              : fields(node, verb, {"factors", "axes", "degree", "replicate", "stage", "devices"});
    SplitLimit l;
    if (f.has("factors")) l.factors = words(f.at("factors"), "factors");
    if (f.has("axes")) l.axes = axes(f.at("axes"));
    if (f.has("degree")) l.degree = factor_degrees(f.at("degree"));
    if (allow && f.has("max_degree")) {
      l.max_degree = integer(f.at("max_degree"), "max_degree", 1, kMaxNumber);
    }
    if (f.has("replicate")) {
      l.replicate = flag(f.at("replicate"), "replicate");
      if (!allow && !*l.replicate) {
        fail(f.at("replicate"), "forbid replicate is true or absent",
             "require: {replicate: true} replicates operators");
      }
    }
    if (!allow) rule.forbid_placement = placement(f, verb);
    if (l == SplitLimit{} && (allow || rule.forbid_placement.empty())) {
      fail(node, fmt::format("{} says nothing", verb));
    }
    return l;
  }

  Placement placement(const YamlFields& f, std::string_view verb) const {
    Placement p;
    if (f.has("stage")) {
      p.stages = list(f.at("stage"), "stage", [&](const YAML::Node& n) {
        const std::string text = yaml_scalar(n, source_, "stage");
        if (text == "first") return 0;
        if (text == "last") return -1;
        return static_cast<int>(integer(n, "stage", -(1 << 20), 1 << 20));
      });
    }
    if (f.has("devices")) {
      const YAML::Node devices = f.at("devices");
      if (verb == "assign" && devices.IsScalar() && devices.Scalar() == "all") {
        p.every_device = true;
      } else {
        for (const auto& [first, last] :
             list(devices, "devices", [&](const YAML::Node& n) { return range(n, "devices"); })) {
          p.devices.emplace_back(static_cast<int>(first), static_cast<int>(last));
        }
      }
    }
    return p;
  }

  SpaceRule rule(const YAML::Node& node, std::size_t number) const {
    const YamlFields f =
        fields(node, "a rule",
               {"name", "match", "require", "allow", "forbid", "assign", "recompute", "state"});
    SpaceRule r;
    r.name = f.has("name") ? f.name("name") : fmt::format("rule-{}", number);
    r.place = place(node);
    r.match = match(f.at("match"));
    if (f.has("require")) require(f.at("require"), r);
    if (f.has("allow")) r.allow = limit(f.at("allow"), "allow", r);
    if (f.has("forbid")) {
      r.forbid = limit(f.at("forbid"), "forbid", r);
      if (*r.forbid == SplitLimit{}) r.forbid.reset();
    }
    if (f.has("assign")) {
      const YamlFields a = fields(f.at("assign"), "assign", {"stage", "devices"});
      r.assign = placement(a, "assign");
      if (r.assign.empty()) fail(f.at("assign"), "assign says nothing", "keys: stage, devices");
    }
    if (f.has("recompute")) {
      r.recompute = parse_recompute(
          one_of(f.at("recompute"), "recompute mode", {"none", "selective", "full", "parts"}));
    }
    if (f.has("state")) r.state = states(f.at("state"));
    if (!f.has("require") && !f.has("allow") && !f.has("forbid") && !f.has("assign") &&
        !f.has("recompute") && !f.has("state")) {
      fail(node, fmt::format("rule {} says nothing about what it matches", r.name),
           "keys: require, allow, forbid, assign, recompute, state");
    }
    return r;
  }

  std::vector<StateSharding> states(const YAML::Node& node) const {
    return list(node, "state", [&](const YAML::Node& n) {
      return parse_state_sharding(one_of(n, "state sharding", {"none", "zero1", "zero2", "zero3"}));
    });
  }

  std::vector<SpaceDegree> degrees(const YAML::Node& node) const {
    fields(node, "degrees",
           {"pp", "vpp", "dp", "tp", "cp", "ep", "etp", "micro_batch", "sp", "zero", "hybrid",
            "recompute", "schedule"});
    std::vector<SpaceDegree> result;
    for (const auto& entry : node) {
      SpaceDegree d;
      d.key = entry.first.Scalar();
      d.place = place(entry.first);
      const YAML::Node& value = entry.second;
      const bool any = value.IsScalar() && value.Scalar() == "any";
      if (std::find(std::begin(kCounts), std::end(kCounts), d.key) != std::end(kCounts)) {
        d.numbers = allowed(value, d.key);
        if (!d.numbers.restricts()) continue;
      } else if (any) {
        continue;
      } else if (d.key == "sp" || d.key == "hybrid") {
        d.flag = flag(value, d.key);
      } else if (d.key == "zero") {
        for (StateSharding s : states(value)) d.names.emplace_back(state_sharding_name(s));
      } else if (d.key == "recompute") {
        d.names = list(value, d.key, [&](const YAML::Node& n) {
          return one_of(n, "recompute mode", {"none", "selective", "full", "parts"});
        });
      } else {
        d.names = words(value, d.key);
      }
      result.push_back(std::move(d));
    }
    return result;
  }

  SpaceTransform transform(const YAML::Node& node, std::size_t number) const {
    const YamlFields f =
        fields(node, "a transform", {"name", "op_trans", "match", "factor", "parts"});
    SpaceTransform t;
    t.name = f.has("name") ? f.name("name") : fmt::format("transform-{}", number);
    t.place = place(node);
    t.transform = one_of(f.at("op_trans"), "transform", {"co_shard", "slice_sequence"});
    t.match = glob(f.at("match"), "match");
    t.factor = f.has("factor") ? word(f.at("factor"), "factor") : "seq";
    t.parts = f.count("parts", 2, 1024);
    return t;
  }

  OrderPoint::Index index(const YAML::Node& node, std::string_view what, char variable,
                          std::int64_t low) const {
    const std::string text = yaml_scalar(node, source_, what);
    std::string_view rest = text;
    OrderPoint::Index result{false, 0};
    if (!rest.empty() && rest[0] == variable) {
      result.variable = true;
      rest.remove_prefix(1);
      if (rest.empty()) return result;
      if (rest[0] == '+') rest.remove_prefix(1);
      low = -(1 << 20);
    }
    const auto [end, status] =
        std::from_chars(rest.data(), rest.data() + rest.size(), result.offset);
    if (rest.empty() || status != std::errc{} || end != rest.data() + rest.size() ||
        result.offset < low || result.offset > (1 << 24)) {
      fail(node, fmt::format("{} {} is no index", what, in_quotes(text)),
           fmt::format("write a number, {0} (any), {0}+1 or {0}-1", variable));
    }
    return result;
  }

  OrderPoint point(const YAML::Node& node, std::string_view what) const {
    const YamlFields f = fields(node, what, {"phase", "micro_batch", "stage", "path"});
    OrderPoint p;
    p.phase = one_of(f.at("phase"), "phase", {"forward", "backward", "weight"});
    if (f.has("micro_batch")) p.micro_batch = index(f.at("micro_batch"), "micro_batch", 'i', 0);
    if (f.has("stage")) {
      const YAML::Node stage = f.at("stage");
      if (stage.IsScalar() && stage.Scalar() == "first")
        p.stage = {false, 0};
      else if (stage.IsScalar() && stage.Scalar() == "last")
        p.stage = {false, -1};
      else
        p.stage = index(stage, "stage", 's', -(1 << 20));
    }
    if (f.has("path")) p.path = glob(f.at("path"), "path");
    return p;
  }

  SpaceOrder order(const YAML::Node& node, std::size_t number) const {
    const YamlFields f = fields(node, "an order", {"name", "before", "after"});
    SpaceOrder o;
    o.name = f.has("name") ? f.name("name") : fmt::format("order-{}", number);
    o.place = place(node);
    o.rule = {point(f.at("before"), "before"), point(f.at("after"), "after")};
    if (o.rule.before == o.rule.after) fail(node, "before and after are the same");
    return o;
  }

  template <class Read>
  auto entries(const YamlFields& f, std::string_view key, Read&& read) const {
    std::vector<decltype(read(YAML::Node(), std::size_t{1}))> values;
    for (const YAML::Node& node : f.list(key)) {
      if (values.size() == kMaxRules) {
        fail(node, fmt::format("more than {} entries in {}", kMaxRules, key));
      }
      values.push_back(read(node, values.size() + 1));
    }
    return values;
  }

  std::string source_;
};

PlanSpace Reader::space(const YAML::Node& node) {
  const YamlFields f =
      fields(node, "a plan space",
             {"space", "paper", "summary", "degrees", "transforms", "rules", "order"});
  PlanSpace s;
  s.source = source_;
  s.name = f.name("space");
  s.paper = line(f, "paper");
  s.summary = line(f, "summary");
  if (f.has("degrees")) s.degrees = degrees(f.at("degrees"));
  s.transforms =
      entries(f, "transforms", [&](const YAML::Node& n, std::size_t i) { return transform(n, i); });
  s.rules = entries(f, "rules", [&](const YAML::Node& n, std::size_t i) { return rule(n, i); });
  s.order = entries(f, "order", [&](const YAML::Node& n, std::size_t i) { return order(n, i); });
  std::set<std::string> names;
  const auto fresh = [&](const std::string& name, const std::string& where) {
    if (!names.insert(name).second) {
      throw Error(fmt::format("two rules are named {}", name), where, "give one another name");
    }
  };
  for (const SpaceTransform& t : s.transforms) fresh(t.name, t.place);
  for (const SpaceRule& r : s.rules) fresh(r.name, r.place);
  for (const SpaceOrder& o : s.order) fresh(o.name, o.place);
  return s;
}

}  // namespace

PlanSpace parse_space(std::string_view text, std::string_view source) {
  const YAML::Node document = load_yaml(text, source);
  try {
    return Reader(source).space(document);
  } catch (const YAML::Exception& e) {
    // Access to a node that is not what it must be; the reader asks before, so this is a last net.
    throw Error("not a plan space: " + e.msg, std::string(source));
  }
}

}  // namespace meshwright
