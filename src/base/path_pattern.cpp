#include "base/path_pattern.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxPattern = 256;

std::vector<std::string_view> components(std::string_view path) {
  std::vector<std::string_view> result;
  while (true) {
    const std::size_t dot = path.find('.');
    result.push_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return result;
    path.remove_prefix(dot + 1);
  }
}

// A number without sign at the front of `text`, and its digits taken off.
std::optional<std::int64_t> take_number(std::string_view& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

struct Range {
  std::int64_t first, last;
};

// "[3-7]" or "[3]" at the front of `pattern`, taken off.
std::optional<Range> take_range(std::string_view& pattern) {
  std::string_view rest = pattern;
  if (!rest.starts_with('[')) return std::nullopt;
  rest.remove_prefix(1);
  const auto first = take_number(rest);
  auto last = first;
  if (rest.starts_with('-')) {
    rest.remove_prefix(1);
    last = take_number(rest);
  }
  if (!first || !last || *last < *first || !rest.starts_with(']')) return std::nullopt;
  pattern = rest.substr(1);
  return Range{*first, *last};
}

// One component. A star is retried at every later place, so the time is the product of the lengths.
bool component_matches(std::string_view pattern, std::string_view text) {
  std::optional<std::string_view> after_star;
  std::string_view star_text;
  while (true) {
    if (pattern.starts_with('*')) {
      pattern.remove_prefix(1);
      after_star = pattern;
      star_text = text;
      continue;
    }
    if (pattern.empty() && text.empty()) return true;
    std::string_view p = pattern;
    std::string_view t = text;
    bool step = false;
    if (const auto range = take_range(p)) {
      const auto number = take_number(t);
      step = number && *number >= range->first && *number <= range->last;
    } else if (!p.empty() && !t.empty() && p[0] == t[0]) {
      p.remove_prefix(1);
      t.remove_prefix(1);
      step = true;
    }
    if (step) {
      pattern = p;
      text = t;
      continue;
    }
    if (!after_star || star_text.empty()) return false;
    star_text.remove_prefix(1);
    pattern = *after_star;
    text = star_text;
  }
}

}  // namespace

void check_path_pattern(std::string_view pattern) {
  if (pattern.empty() || pattern.size() > kMaxPattern) {
    throw Error(
        fmt::format("a path pattern has 1 to {} characters, not {}", kMaxPattern, pattern.size()));
  }
  for (const std::string_view part : components(pattern)) {
    if (part.empty()) {
      throw Error(fmt::format("path pattern {} has an empty component", in_quotes(pattern)), {},
                  "write names, * or ** between single dots");
    }
    if (part != "**" && part.find("**") != std::string_view::npos) {
      throw Error(fmt::format("path pattern {} has ** inside a component", in_quotes(pattern)), {},
                  "** stands alone between dots: a.**.b");
    }
    for (std::string_view rest = part; !rest.empty();) {
      if (rest[0] != '[' && rest[0] != ']') {
        rest.remove_prefix(1);
      } else if (!take_range(rest)) {
        throw Error(fmt::format("path pattern {} has a range that is none", in_quotes(pattern)), {},
                    "a range of numbers is written [0-15]");
      }
    }
  }
}

bool path_matches(std::string_view pattern, std::string_view path) {
  const std::vector<std::string_view> parts = components(pattern);
  // reached[i]: the first i parts stand for the components seen so far.
  std::vector<bool> reached(parts.size() + 1);
  reached[0] = true;
  const auto skip_stars = [&] {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (reached[i] && parts[i] == "**") reached[i + 1] = true;
    }
  };
  skip_stars();
  for (const std::string_view component : components(path)) {
    std::vector<bool> next(parts.size() + 1);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!reached[i]) continue;
      if (parts[i] == "**") {
        next[i] = true;
      } else if (component_matches(parts[i], component)) {
        next[i + 1] = true;
      }
    }
    reached = std::move(next);
    skip_stars();
  }
  return reached.back();
}

}  // namespace meshwright
