#include "plan/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ops/gradient_flow.h"

namespace meshwright {
namespace {

void append_attr(std::string& text, const Attr& attr) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
          for (auto x : v) text += fmt::format("{},", x);
        } else {
          text += fmt::format("{}", v);
        }
      },
      attr);
}

// Everything that decides cost and memory of a segment, with values numbered by first appearance.
// Values that later segments read are marked: a segment whose result is also read far away is
// another class.
std::string signature(const Graph& graph, const Segment& segment, const std::vector<int>& last_use,
                      const std::vector<bool>& has_gradient) {
  std::string text;
  std::unordered_map<std::int32_t, int> number;
  const auto mention = [&](ValueId id) {
    const auto [it, fresh] = number.try_emplace(id.value, static_cast<int>(number.size()));
    text += fmt::format("%{}", it->second);
    if (fresh) {
      const Value& value = graph.value(id);
      text += fmt::format(":{}{}{}", static_cast<int>(value.kind), to_string(value.type),
                          has_gradient[id.index()] ? "" : " fixed");
    }
    text += ' ';
  };
  for (int i = segment.first_op; i < segment.last_op; ++i) {
    const Op& op = graph.ops[static_cast<std::size_t>(i)];
    text += op.kind;
    for (const auto& [key, attr] : op.attrs) {
      text += ';' + key + '=';
      append_attr(text, attr);
    }
    text += '(';
    for (ValueId id : op.inputs) mention(id);
    text += ")->";
    for (ValueId id : op.outputs) {
      mention(id);
      if (last_use[id.index()] >= segment.last_op) text += '!';
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string_view layer_path(std::string_view name) {
  std::size_t begin = 0;
  while (begin < name.size()) {
    std::size_t end = name.find('.', begin);
    if (end == std::string_view::npos) end = name.size();
    const std::string_view part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  return {};
}

std::string_view round_path(std::string_view name) {
  for (std::string_view prefix : {"slice", "recycle"}) {
    if (!name.starts_with(prefix)) continue;
    const std::size_t end = name.find_first_not_of("0123456789", prefix.size());
    if (end != std::string_view::npos && end > prefix.size() && name[end] == '.')
      return name.substr(0, end);
  }
  return {};
}

std::vector<Segment> find_segments(const Graph& graph) {
  std::vector<Segment> segments;
  std::string_view current, current_round;
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    const std::string_view name = graph.ops[static_cast<std::size_t>(i)].name;
    const std::string_view path = layer_path(name);
    const std::string_view round = round_path(name);
    if (segments.empty() || path != current || round != current_round) {
      segments.push_back({i, i, std::string(path.empty() ? name : path), !path.empty(), 0});
      current = path;
      current_round = round;
    }
    segments.back().last_op = i + 1;
  }
  std::vector<int> last_use(graph.values.size(), -1);
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    for (ValueId id : graph.ops[static_cast<std::size_t>(i)].inputs) last_use[id.index()] = i;
  }
  const std::vector<bool> has_gradient = requires_gradient(graph);
  std::unordered_map<std::string, int> classes;
  for (Segment& segment : segments) {
    segment.shape_class = classes
                              .try_emplace(signature(graph, segment, last_use, has_gradient),
                                           static_cast<int>(classes.size()))
                              .first->second;
  }
  return segments;
}

int shape_class_count(const std::vector<Segment>& segments) {
  int count = 0;
  for (const Segment& s : segments) count = std::max(count, s.shape_class + 1);
  return count;
}

}  // namespace meshwright
