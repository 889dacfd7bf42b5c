#include "plan/override_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/path_pattern.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxEntries = 100000;

// A path cut at its first number: "layers.", 17, ".mlp".
struct NumberedPath {
  std::string before, after;
  std::int64_t number = -1;
};

NumberedPath take_apart(const std::string& path) {
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool canonical = part.size() == 1 || (!part.empty() && part[0] != '0');
    if (canonical && part.size() < 10 &&
        part.find_first_not_of("0123456789") == std::string::npos) {
      return {path.substr(0, begin), path.substr(end), std::stoll(part)};
    }
    begin = end + 1;
  }
  return {path, "", -1};
}

// Names as patterns: numbers that follow one another become a range.
Json patterns_of(const std::vector<std::string>& names) {
  std::map<std::pair<std::string, std::string>, std::vector<std::int64_t>> numbered;
  std::vector<std::pair<std::string, std::string>> sequence;
  Json list = Json::array();
  for (const std::string& name : names) {
    const NumberedPath path = take_apart(name);
    if (path.number < 0) {
      list.push_back(name);
      continue;
    }
    auto& numbers = numbered[{path.before, path.after}];
    if (numbers.empty()) sequence.emplace_back(path.before, path.after);
    numbers.push_back(path.number);
  }
  for (const auto& key : sequence) {
    std::vector<std::int64_t>& numbers = numbered[key];
    std::sort(numbers.begin(), numbers.end());
    for (std::size_t i = 0; i < numbers.size();) {
      std::size_t j = i + 1;
      while (j < numbers.size() && numbers[j] == numbers[j - 1] + 1) ++j;
      list.push_back(j == i + 1 ? fmt::format("{}{}{}", key.first, numbers[i], key.second)
                                : fmt::format("{}[{}-{}]{}", key.first, numbers[i], numbers[j - 1],
                                              key.second));
      i = j;
    }
  }
  return list;
}

[[noreturn]] void fail(std::string message, std::string where, std::string hint = {}) {
  throw Error(std::move(message), std::move(where), std::move(hint));
}

void check_keys(const Json& json, const std::string& place, std::vector<std::string> legal) {
  if (!json.is_object()) fail("must be an object", place);
  for (const auto& [key, value] : json.items()) {
    if (std::find(legal.begin(), legal.end(), key) != legal.end()) continue;
    const auto near = nearest_names(key, legal, 1);
    fail(fmt::format("unknown key {}", in_quotes(key)), place,
         near.empty() ? "" : "did you mean " + near[0] + "?");
  }
}

const Json& list_at(const Json& json, const std::string& key, const std::string& place) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array()) fail(fmt::format("needs a list '{}'", key), place);
  if (it->size() > kMaxEntries) fail(fmt::format("'{}' has too many entries", key), place);
  return *it;
}

std::string text_of(const Json& json, const std::string& place) {
  if (!json.is_string()) fail("must be a string", place);
  return json.get<std::string>();
}

}  // namespace

Json overrides_to_json(const Overrides& overrides, const Graph& graph,
                       const std::vector<Segment>& segments) {
  std::vector<std::vector<std::string>> names(overrides.rules.size());
  for (std::size_t op = 0; op < overrides.rule_of_op.size(); ++op) {
    const int rule = overrides.rule_of_op[op];
    if (rule >= 0) names[static_cast<std::size_t>(rule)].push_back(graph.ops[op].name);
  }
  Json json = Json::object();
  Json operators = Json::array();
  for (std::size_t r = 0; r < overrides.rules.size(); ++r) {
    if (names[r].empty()) continue;
    Json split = Json::object();
    for (const OpOverride::Split& s : overrides.rules[r].splits) split[s.factor] = s.axes;
    operators.push_back({{"match", patterns_of(names[r])},
                         {"replicate", overrides.rules[r].replicate},
                         {"split", std::move(split)}});
  }
  json["operators"] = std::move(operators);
  Json recompute = Json::object();
  for (std::size_t i = 0; i < overrides.recompute.size(); ++i) {
    if (overrides.recompute[i] < 0) continue;
    recompute[segments[i].name] = recompute_name(static_cast<Recompute>(overrides.recompute[i]));
  }
  json["recompute"] = std::move(recompute);
  return json;
}

std::shared_ptr<const Overrides> overrides_from_json(const Json& json, const Graph& graph,
                                                     const std::vector<Segment>& segments,
                                                     std::string_view source) {
  const std::string place = fmt::format("{}: /overrides", source);
  check_keys(json, place, {"operators", "recompute"});
  auto result = std::make_shared<Overrides>();
  if (json.contains("operators")) {
    std::map<std::string_view, int> op_named;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      op_named.emplace(graph.ops[i].name, static_cast<int>(i));
    }
    result->rule_of_op.assign(graph.ops.size(), -1);
    const Json& operators = list_at(json, "operators", place);
    for (std::size_t r = 0; r < operators.size(); ++r) {
      const std::string where = fmt::format("{}/operators/{}", place, r);
      check_keys(operators[r], where, {"match", "replicate", "split"});
      OpOverride rule;
      if (operators[r].contains("replicate")) {
        const Json& flag = operators[r].at("replicate");
        if (!flag.is_boolean()) fail("must be true or false", where + "/replicate");
        rule.replicate = flag.get<bool>();
      }
      if (operators[r].contains("split")) {
        const Json& split = operators[r].at("split");
        if (!split.is_object()) fail("must be an object", where + "/split");
        for (const auto& [factor, axes] : split.items()) {
          OpOverride::Split s{factor, {}};
          if (!axes.is_array() || axes.size() > 16)
            fail("must be a list of axes", where + "/split");
          for (const Json& axis : axes) s.axes.push_back(text_of(axis, where + "/split"));
          rule.splits.push_back(std::move(s));
        }
      }
      const auto give = [&](int op) {
        std::int32_t& entry = result->rule_of_op[static_cast<std::size_t>(op)];
        if (entry >= 0) {
          fail(fmt::format("operator {} is overridden twice",
                           in_quotes(graph.ops[static_cast<std::size_t>(op)].name)),
               where);
        }
        entry = static_cast<std::int32_t>(r);
      };
      for (const Json& item : list_at(operators[r], "match", where)) {
        const std::string pattern = text_of(item, where + "/match");
        if (const auto it = op_named.find(pattern); it != op_named.end()) {
          give(it->second);
          continue;
        }
        try {
          check_path_pattern(pattern);
        } catch (const Error& e) {
          throw e.within(where + "/match");
        }
        bool some = false;
        for (std::size_t op = 0; op < graph.ops.size(); ++op) {
          if (!path_matches(pattern, graph.ops[op].name)) continue;
          give(static_cast<int>(op));
          some = true;
        }
        if (!some) {
          fail(fmt::format("{} matches no operator of the model", in_quotes(pattern)),
               where + "/match", "was the plan made for another model?");
        }
      }
      result->rules.push_back(std::move(rule));
    }
  }
  if (json.contains("recompute")) {
    const Json& recompute = json.at("recompute");
    if (!recompute.is_object()) fail("must be an object", place + "/recompute");
    if (!recompute.empty()) result->recompute.assign(segments.size(), -1);
    std::map<std::string_view, std::size_t> segment_named;
    for (std::size_t i = 0; i < segments.size(); ++i) segment_named.emplace(segments[i].name, i);
    for (const auto& [name, mode] : recompute.items()) {
      const auto it = segment_named.find(name);
      const std::string where = place + "/recompute";
      if (it == segment_named.end()) {
        fail(fmt::format("the model has no segment {}", in_quotes(name)), where);
      }
      try {
        result->recompute[it->second] =
            static_cast<std::int8_t>(parse_recompute(text_of(mode, where)));
      } catch (const Error& e) {
        throw e.within(where);
      }
    }
  }
  return result;
}

}  // namespace meshwright
