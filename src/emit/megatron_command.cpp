// The words around the options: environment, launcher, script.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"
#include "base/spelling.h"
#include "emit/megatron_args.h"
#include "emit/shell_words.h"

namespace meshwright {
namespace {

/// Length of the variable name when `word` is an assignment `NAME=value`, else 0.
std::size_t assigned_name(std::string_view word) {
  const auto is_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  std::size_t length = 0;
  while (length < word.size() && is_name(static_cast<unsigned char>(word[length]))) ++length;
  const bool named = length > 0 && std::isdigit(static_cast<unsigned char>(word[0])) == 0;
  return named && length < word.size() && word[length] == '=' ? length : 0;
}

/// The count in `text`, or nothing when it is another word (`gpu`, `1:4`).
std::optional<std::int64_t> read_count(std::string_view text, std::string_view place) {
  const bool numeric =
      !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!numeric) return std::nullopt;
  std::int64_t count = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (failure != std::errc{} || count < 1 || count > kMaxMegatronWorld)
    throw Error(fmt::format("{} is out of range", text.substr(0, 40)), std::string(place),
                fmt::format("1 to {}", kMaxMegatronWorld));
  return count;
}

/// How many words belong to the launcher: all up to the script, which is the first `*.py` word or
/// the module behind `-m` (torch.distributed's own modules are launchers). 0 when options come at
/// once.
std::size_t launcher_length(std::span<const std::string> words) {
  if (words.empty() || words[0].starts_with("--")) return 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].ends_with(".py")) return i + 1;
    const bool names_module = words[i] == "-m" || words[i] == "--module";
    if (names_module && i + 1 < words.size() && !words[i + 1].starts_with("torch.")) return i + 2;
  }
  throw Error(fmt::format("no training script behind {}", in_quotes(words[0])), "command line",
              "e.g. torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers ...");
}

/// The last value of the launcher option `name`, which torchrun spells with dashes or underscores.
std::optional<std::string> launcher_value(std::span<const std::string> words,
                                          std::string_view name) {
  std::optional<std::string> value;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string flag = words[i].substr(0, words[i].find('='));
    std::ranges::replace(flag, '_', '-');
    if (flag != name) continue;
    if (flag.size() < words[i].size())
      value = words[i].substr(flag.size() + 1);
    else if (i + 1 < words.size())
      value = words[i + 1];
  }
  return value;
}

bool starts_ranks(std::span<const std::string> launcher) {
  return std::ranges::any_of(launcher, [](const std::string& word) {
    return word == "torchrun" || word.ends_with("/torchrun") ||
           word.starts_with("torch.distributed");
  });
}

std::optional<std::int64_t> world_of(const MegatronCommand& command) {
  if (starts_ranks(command.launcher)) {
    const auto per_node = launcher_value(command.launcher, "--nproc-per-node");
    const auto nodes = launcher_value(command.launcher, "--nnodes");
    const auto ranks = read_count(per_node.value_or("1"), "--nproc-per-node");
    const auto hosts = read_count(nodes.value_or("1"), "--nnodes");
    if (!ranks || !hosts) return std::nullopt;
    if (*ranks * *hosts > kMaxMegatronWorld)
      throw Error(fmt::format("{} nodes of {} ranks are too many", *hosts, *ranks), "--nnodes",
                  fmt::format("at most {} ranks", kMaxMegatronWorld));
    return *ranks * *hosts;
  }
  const auto world = command.env.find("WORLD_SIZE");
  if (world == command.env.end()) return std::nullopt;
  return read_count(world->second, "WORLD_SIZE");
}

}  // namespace

MegatronCommand parse_megatron_command(std::span<const std::string> words) {
  MegatronCommand command;
  std::size_t at = 0;
  while (at < words.size()) {
    const std::size_t name = assigned_name(words[at]);
    if (name > 0)
      command.env[words[at].substr(0, name)] = words[at].substr(name + 1);
    else if (words[at] != "env" && words[at] != "export")
      break;
    ++at;
  }
  const std::size_t launcher = launcher_length(words.subspan(at));
  command.launcher.assign(words.begin() + static_cast<std::ptrdiff_t>(at),
                          words.begin() + static_cast<std::ptrdiff_t>(at + launcher));
  command.world_size = world_of(command);
  command.args = parse_megatron_args(words.subspan(at + launcher));
  return command;
}

MegatronCommand parse_megatron_command(std::string_view line) {
  const auto words = split_shell_words(line);
  return parse_megatron_command(std::span<const std::string>(words));
}

}  // namespace meshwright
