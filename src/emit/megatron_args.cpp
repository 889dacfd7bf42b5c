#include "emit/megatron_args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/spelling.h"
#include "emit/megatron_options.h"
#include "emit/shell_words.h"

namespace meshwright {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

/// "-3", "-3.5", "-.5": what argparse takes for a negative number.
bool is_negative_number(std::string_view word) {
  if (!word.starts_with('-')) return false;
  word.remove_prefix(1);
  const auto skip_digits = [&] {
    const auto end = std::min(word.find_first_not_of("0123456789"), word.size());
    word.remove_prefix(end);
    return end > 0;
  };
  const bool whole = skip_digits();
  if (word.empty()) return whole;
  if (!word.starts_with('.')) return false;
  word.remove_prefix(1);
  return skip_digits() && word.empty();
}

/// argparse takes a word as a value unless it begins with a dash and is no number.
bool is_value(std::string_view word) {
  return word.empty() || word[0] != '-' || is_negative_number(word);
}

std::string expansion_hint(std::string_view value) {
  if (value.find('$') == std::string_view::npos) return {};
  return "shell variables are not expanded here: put the value in their place";
}

std::int64_t read_integer(const MegatronOption& option, std::string_view value) {
  std::int64_t number = 0;
  std::string_view digits = value;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = end == digits.data() + digits.size() && !digits.empty();
  if (whole && failure == std::errc{} && number >= option.min && number <= option.max)
    return number;
  const bool is_number = whole && failure != std::errc::invalid_argument;
  throw Error(is_number ? fmt::format("{} is out of range", value.substr(0, 40))
                        : fmt::format("{} is no whole number", in_quotes(value)),
              std::string(option.flag),
              is_number ? fmt::format("{} to {}", option.min, option.max) : expansion_hint(value));
}

double read_real(const MegatronOption& option, std::string_view value) {
  double number = 0;
  const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (value.empty() || failure != std::errc{} || end != value.data() + value.size() ||
      !std::isfinite(number))
    throw Error(fmt::format("{} is no number", in_quotes(value)), std::string(option.flag),
                expansion_hint(value));
  return number;
}

std::string read_choice(const MegatronOption& option, std::string_view value) {
  if (option.choices.empty()) return std::string(value);
  for (std::string_view rest = option.choices; !rest.empty();) {
    const auto blank = rest.find(' ');
    if (rest.substr(0, blank) == value) return std::string(value);
    rest = blank == std::string_view::npos ? std::string_view() : rest.substr(blank + 1);
  }
  std::string legal(option.choices);
  for (std::size_t at = 0; (at = legal.find(' ', at)) != std::string::npos; at += 2)
    legal.replace(at, 1, ", ");
  throw Error(fmt::format("{} is not a choice", in_quotes(value)), std::string(option.flag),
              "legal: " + legal);
}

/// The values behind an option: at least one, for options that take any.
using Values = std::span<const std::string>;

void store(MegatronArgs& args, const MegatronOption& option, Values values) {
  const auto one = [&]() -> const std::string& { return values.front(); };
  std::visit(Overloaded{[&](bool MegatronArgs::* field) { args.*field = true; },
                        [&](std::int64_t MegatronArgs::* field) {
                          args.*field = read_integer(option, one());
                        },
                        [&](std::optional<std::int64_t> MegatronArgs::* field) {
                          args.*field = read_integer(option, one());
                        },
                        [&](std::optional<double> MegatronArgs::* field) {
                          args.*field = read_real(option, one());
                        },
                        [&](std::optional<std::string> MegatronArgs::* field) {
                          args.*field = read_choice(option, one());
                        },
                        [&](std::vector<std::string> MegatronArgs::* field) {
                          std::vector<std::string> list;
                          for (const auto& value : values)
                            list.push_back(read_choice(option, value));
                          args.*field = std::move(list);
                        },
                        [&](std::vector<std::int64_t> MegatronArgs::* field) {
                          std::vector<std::int64_t> list;
                          for (const auto& value : values)
                            list.push_back(read_integer(option, value));
                          args.*field = std::move(list);
                        }},
             option.field);
}

bool takes_value(const MegatronOption& option) {
  return !std::holds_alternative<bool MegatronArgs::*>(option.field);
}

bool takes_list(const MegatronOption& option) {
  return std::holds_alternative<std::vector<std::string> MegatronArgs::*>(option.field) ||
         std::holds_alternative<std::vector<std::int64_t> MegatronArgs::*>(option.field);
}

/// How many of the words from `at` on are values.
std::size_t count_values(std::span<const std::string> words, std::size_t at) {
  std::size_t end = at;
  while (end < words.size() && is_value(words[end])) ++end;
  return end - at;
}

void print_option(std::vector<std::string>& argv, std::string_view flag, Values values) {
  // A value that looks like an option can only be given behind `=`.
  if (values.size() == 1 && !is_value(values[0])) {
    argv.push_back(fmt::format("{}={}", flag, values[0]));
    return;
  }
  argv.emplace_back(flag);
  argv.insert(argv.end(), values.begin(), values.end());
}

void print_option(std::vector<std::string>& argv, std::string_view flag, std::string value) {
  print_option(argv, flag, Values(&value, 1));
}

}  // namespace

const OtherOption* MegatronArgs::find_other(std::string_view flag) const {
  const auto found = std::ranges::find(other, flag, &OtherOption::flag);
  return found == other.end() ? nullptr : &*found;
}

MegatronArgs parse_megatron_args(std::span<const std::string> words) {
  MegatronArgs args;
  for (std::size_t at = 0; at < words.size();) {
    const std::string& word = words[at];
    const auto equals = word.find('=');
    const std::string flag = word.substr(0, equals);
    if (!flag.starts_with("--") || flag.size() == 2)
      throw Error(fmt::format("{} belongs to no option", in_quotes(word)),
                  fmt::format("word {}", at + 1), "options begin with --");
    const MegatronOption* option = find_megatron_option(flag);
    ++at;

    std::vector<std::string> joined;  // the value behind `=`
    Values values;
    if (equals != std::string::npos) {
      joined.push_back(word.substr(equals + 1));
      values = joined;
      if (option != nullptr && !takes_value(*option))
        throw Error(fmt::format("takes no value, got {}", in_quotes(joined[0])), flag);
    } else if (option == nullptr || takes_list(*option)) {
      values = words.subspan(at, count_values(words, at));
      at += values.size();
    } else if (takes_value(*option)) {
      values = words.subspan(at, std::min<std::size_t>(1, count_values(words, at)));
      at += values.size();
    }

    if (option == nullptr) {
      args.other.push_back({flag, {values.begin(), values.end()}});
      continue;
    }
    if (takes_value(*option) && values.empty())
      throw Error("needs a value", flag,
                  option->choices.empty() ? "" : "one of: " + std::string(option->choices));
    store(args, *option, values);
  }
  return args;
}

std::vector<std::string> to_argv(const MegatronArgs& args) {
  static const MegatronArgs defaults;
  std::vector<std::string> argv;
  for (const auto& option : megatron_options()) {
    const auto flag = option.flag;
    std::visit(Overloaded{[&](bool MegatronArgs::* field) {
                            if (args.*field) argv.emplace_back(flag);
                          },
                          [&](std::int64_t MegatronArgs::* field) {
                            if (args.*field != defaults.*field)
                              print_option(argv, flag, fmt::to_string(args.*field));
                          },
                          [&](std::optional<std::int64_t> MegatronArgs::* field) {
                            if (args.*field)
                              print_option(argv, flag, fmt::to_string(*(args.*field)));
                          },
                          [&](std::optional<double> MegatronArgs::* field) {
                            if (args.*field)
                              print_option(argv, flag, fmt::to_string(*(args.*field)));
                          },
                          [&](std::optional<std::string> MegatronArgs::* field) {
                            if (args.*field) print_option(argv, flag, *(args.*field));
                          },
                          [&](std::vector<std::string> MegatronArgs::* field) {
                            if (!(args.*field).empty()) print_option(argv, flag, args.*field);
                          },
                          [&](std::vector<std::int64_t> MegatronArgs::* field) {
                            if ((args.*field).empty()) return;
                            argv.emplace_back(flag);
                            for (const auto value : args.*field)
                              argv.push_back(fmt::to_string(value));
                          }},
               option.field);
  }
  for (const auto& option : args.other) print_option(argv, option.flag, option.values);
  return argv;
}

}  // namespace meshwright
