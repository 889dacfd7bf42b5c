#include "emit/megatron_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr std::string_view kUnits = "EtmL";
constexpr std::string_view kOption = "--pipeline-model-parallel-layout";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The number in `text` from `at` on, and where it ends. Large numbers saturate, so that a bound
/// check can follow.
struct Count {
  std::size_t value;
  std::size_t end;
};

std::optional<Count> read_count(std::string_view text, std::size_t at) {
  Count count{0, at};
  while (count.end < text.size() && is_digit(text[count.end])) {
    count.value = std::min(count.value * 10 + static_cast<std::size_t>(text[count.end] - '0'),
                           kMaxMegatronLayoutUnits + 1);
    ++count.end;
  }
  if (count.end == at) return std::nullopt;
  return count;
}

void append_repeated(std::string& out, std::string_view what, std::size_t times) {
  if (what.empty()) return;
  if (times > kMaxMegatronLayoutUnits / what.size() ||
      out.size() + what.size() * times > kMaxMegatronLayoutUnits) {
    throw Error(
        fmt::format("the pipeline layout unrolls to more than {} units", kMaxMegatronLayoutUnits),
        std::string(kOption), "use smaller repeat counts");
  }
  for (std::size_t i = 0; i < times; ++i) out += what;
}

/// `(text)*n` -> text n times. The text runs to the next `)`, so groups do not nest.
std::string unroll_groups(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '(') {
      const std::size_t close = text.find(')', at);
      if (close != std::string_view::npos && close > at + 1 && close + 1 < text.size() &&
          text[close + 1] == '*') {
        if (const auto count = read_count(text, close + 2)) {
          append_repeated(out, text.substr(at + 1, close - at - 1), count->value);
          at = count->end;
          continue;
        }
      }
    }
    append_repeated(out, text.substr(at, 1), 1);
    ++at;
  }
  return out;
}

/// `x*n` -> x n times, for any single character x.
std::string unroll_units(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t times = 1;
    std::size_t end = at + 1;
    if (end < text.size() && text[end] == '*') {
      if (const auto count = read_count(text, end + 1)) {
        times = count->value;
        end = count->end;
      }
    }
    append_repeated(out, text.substr(at, 1), times);
    at = end;
  }
  return out;
}

Error bad_character(const char& c, std::size_t stage) {
  std::string hint =
      "E is the embedding, t a decoder layer, m a prediction layer, L the loss, | ends a stage";
  if (c == '(' || c == ')')
    hint = "write a group as (t*2|)*3: it needs a count and cannot nest";
  else if (c == '*' || is_digit(c))
    hint = "a count follows one letter or one group: t*3, (tt|)*2";
  return Error(fmt::format("{} is no pipeline layout unit (stage {})", in_quotes({&c, 1}), stage),
               std::string(kOption), hint);
}

/// `tttt` -> `t*4`; runs of up to three read better spelled out.
std::string print_stage(std::string_view stage) {
  std::string out;
  for (std::size_t at = 0; at < stage.size();) {
    std::size_t end = at;
    while (end < stage.size() && stage[end] == stage[at]) ++end;
    if (end - at > 3)
      out += fmt::format("{}*{}", stage[at], end - at);
    else
      out += stage.substr(at, end - at);
    at = end;
  }
  return out;
}

/// A count that ends `text` would swallow a following letter's look, so a comma parts them.
void append_text(std::string& text, std::string_view next) {
  if (!text.empty() && !next.empty() && is_digit(text.back()) && next[0] != '|') text += ',';
  text += next;
}

}  // namespace

MegatronLayout parse_megatron_layout(std::string_view text) {
  if (text.size() > kMaxMegatronLayoutUnits) {
    throw Error(fmt::format("the pipeline layout has {} characters, at most {} are allowed",
                            text.size(), kMaxMegatronLayoutUnits),
                std::string(kOption));
  }
  std::string plain(text);
  std::erase(plain, ',');
  plain = unroll_units(unroll_groups(plain));

  MegatronLayout layout;
  layout.stages.emplace_back();
  for (const char c : plain) {
    if (c == '|') {
      layout.stages.emplace_back();
    } else {
      if (kUnits.find(c) == std::string_view::npos)
        throw bad_character(c, layout.stages.size() - 1);
      layout.stages.back() += c;
    }
  }
  return layout;
}

std::string print_megatron_layout(const MegatronLayout& layout) {
  const auto& stages = layout.stages;
  std::string out;
  for (std::size_t at = 0; at < stages.size();) {
    std::size_t end = at;
    while (end < stages.size() && stages[end] == stages[at]) ++end;
    // The last stage of all carries no separator, so it cannot be part of a repeated group.
    std::size_t repeats = end - at;
    const bool ends_layout = end == stages.size();
    if (ends_layout) --repeats;
    const std::string stage = print_stage(stages[at]);
    if (stage.empty()) {
      append_text(out, repeats > 3 ? fmt::format("|*{}", repeats) : std::string(repeats, '|'));
    } else if (repeats > 1) {
      append_text(out, fmt::format("({}|)*{}", stage, repeats));
    } else if (repeats == 1) {
      append_text(out, stage + "|");
    }
    if (ends_layout) append_text(out, stage);
    at = end;
  }
  return out;
}

MegatronLayout make_megatron_layout(std::span<const std::int64_t> layers_per_stage,
                                    std::int64_t mtp_layers) {
  MW_CHECK(!layers_per_stage.empty(), "a pipeline layout needs a stage");
  MW_CHECK(mtp_layers >= 0, "negative number of prediction layers");
  MegatronLayout layout;
  for (const std::int64_t layers : layers_per_stage) {
    MW_CHECK(layers >= 0 && layers <= static_cast<std::int64_t>(kMaxMegatronLayoutUnits),
             "layers of a pipeline stage out of range");
    layout.stages.emplace_back(static_cast<std::size_t>(layers), 't');
  }
  layout.stages.front().insert(0, "E");
  layout.stages.back().append(static_cast<std::size_t>(mtp_layers), 'm');
  layout.stages.back() += 'L';
  return layout;
}

std::vector<std::int64_t> balanced_layers(std::int64_t layers, std::int64_t stages) {
  MW_CHECK(stages > 0 && layers >= 0, "balanced_layers needs a stage and no negative layers");
  std::vector<std::int64_t> split(static_cast<std::size_t>(stages), (layers + 2) / stages);
  std::int64_t rest = (layers + 2) % stages;
  for (std::int64_t i = (stages - rest) / 2; rest > 0; ++i, --rest) ++split[i];
  split.front() -= 1;
  split.back() -= 1;
  // Too few layers for every stage: an end that the embedding or the loss fills alone owes nothing.
  if (split.front() < 0) split.front() = 0;
  if (split.back() < 0) split.back() = 0;
  std::int64_t surplus = -layers;
  for (const std::int64_t n : split) surplus += n;
  for (std::size_t i = split.size(); surplus > 0 && i-- > 0;) {
    const std::int64_t taken = std::min(surplus, split[i]);
    split[i] -= taken;
    surplus -= taken;
  }
  return split;
}

LayerTable layers_of(const MegatronLayout& layout, std::int64_t pp) {
  const auto ranks = static_cast<std::size_t>(pp);
  MW_CHECK(pp > 0 && layout.stages.size() % ranks == 0, "stages are no multiple of pipeline ranks");
  LayerTable table(ranks, std::vector<std::int64_t>(layout.stages.size() / ranks));
  for (std::size_t s = 0; s < layout.stages.size(); ++s)
    table[s % ranks][s / ranks] = std::ranges::count(layout.stages[s], 't');
  return table;
}

std::string layout_fault(const MegatronLayout& layout, std::int64_t pp, std::int64_t num_layers,
                         std::int64_t mtp_layers) {
  std::string units;
  for (const auto& stage : layout.stages) units += stage;
  const auto count = [&](char unit) { return std::ranges::count(units, unit); };

  if (units.empty() || units.front() != 'E') return "the layout must start with the embedding E";
  if (units.back() != 'L') return "the layout must end with the loss L";
  if (count('E') != 1) return fmt::format("the embedding E appears {} times", count('E'));
  if (count('L') != 1) return fmt::format("the loss L appears {} times", count('L'));
  if (count('t') != num_layers)
    return fmt::format("the layout holds {} decoder layers, num-layers is {}", count('t'),
                       num_layers);
  if (count('m') != mtp_layers)
    return fmt::format("the layout holds {} prediction layers m, mtp-num-layers is {}", count('m'),
                       mtp_layers);
  const auto first_mtp = units.find('m');
  if (first_mtp != std::string::npos && units.find('t', first_mtp) != std::string::npos)
    return "a decoder layer t stands behind a prediction layer m";
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const auto in_stage = std::ranges::count(layout.stages[s], 'm');
    if (in_stage == 0) continue;
    if (s + static_cast<std::size_t>(pp) < layout.stages.size())
      return fmt::format(
          "stage {} holds a prediction layer m but is not its rank's last virtual stage", s);
    if (in_stage != mtp_layers) return "the prediction layers m are spread over several stages";
  }
  return {};
}

}  // namespace meshwright
