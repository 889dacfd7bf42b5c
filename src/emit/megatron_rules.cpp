#include "emit/megatron_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "emit/megatron_case.h"
#include "emit/megatron_options.h"

namespace meshwright {
namespace {

/// Appends what the rules complain about; returns whether they all hold.
bool apply(std::span<const MegatronRule> rules, const MegatronCase& c,
           std::vector<MegatronFinding>& violations) {
  bool holds = true;
  for (const auto& rule : rules) {
    if (auto broken = rule.test(c)) {
      violations.push_back({std::string(rule.id), broken->message, broken->legal});
      holds = false;
    }
  }
  return holds;
}

/// Options that change what is checked here in ways that are not modelled.
constexpr std::string_view kNotModelled[] = {
    "--yaml-cfg",
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--spec",
    "--heterogeneous-layers-config-path",
    "--step-batch-size-schedule",
    "--rampup-batch-size",
    "--use-checkpoint-args",
    "--decoder-num-layers",
};

std::vector<std::string> warnings_about(const MegatronArgs& args) {
  std::vector<std::string> warnings;
  std::vector<std::string_view> unchecked;
  for (const auto& option : args.other) {
    const std::string_view flag = std::string_view(option.flag).substr(0, 100);
    const auto similar = similar_megatron_flag(flag);
    if (std::ranges::count(kNotModelled, flag) > 0)
      warnings.push_back(
          fmt::format("{} changes the model or the batch in ways that are not checked", flag));
    else if (!similar.empty())
      warnings.push_back(fmt::format("{} is not known; is {} meant?", flag, similar));
    else
      unchecked.push_back(flag);
  }
  constexpr std::size_t kShown = 40;
  if (!unchecked.empty()) {
    const std::size_t shown = std::min(kShown, unchecked.size());
    warnings.push_back(fmt::format(
        "options without a rule, not checked: {}{}",
        fmt::join(unchecked.begin(), unchecked.begin() + static_cast<std::ptrdiff_t>(shown), " "),
        shown < unchecked.size() ? fmt::format(" and {} more", unchecked.size() - shown) : ""));
  }
  return warnings;
}

}  // namespace

MegatronVerdict check_megatron(const MegatronArgs& args, std::int64_t world_size,
                               const std::map<std::string, std::string>& env,
                               const MegatronPlatform& platform) {
  if (world_size < 1 || world_size > kMaxMegatronWorld)
    throw Error(fmt::format("{} ranks are out of range", world_size), "world size",
                fmt::format("1 to {}", kMaxMegatronWorld));
  const MegatronCase c = make_megatron_case(args, world_size, env, platform);

  MegatronVerdict verdict;
  verdict.data_parallel = c.dp;
  verdict.expert_data_parallel = c.expert_dp;
  verdict.micro_batches = c.micro_batches;

  auto& violations = verdict.violations;
  verdict.args_ok = apply(megatron_argument_rules(), c, violations);
  verdict.args_ok = apply(megatron_config_rules(), c, violations) && verdict.args_ok;
  verdict.groups_ok = apply(megatron_group_rules(), c, violations);
  if (verdict.args_ok) {
    auto build = build_megatron_layers(c);
    verdict.build_ok = !build.broken;
    verdict.layers = std::move(build.layers);
    if (build.broken) violations.push_back(std::move(*build.broken));
  }
  verdict.schedule_ok = apply(megatron_schedule_rules(), c, violations);
  verdict.final_ok = violations.empty();

  verdict.would_misbehave = megatron_cautions(c, verdict.layers);
  verdict.fine =
      verdict.final_ok &&
      std::ranges::all_of(verdict.would_misbehave, [](const auto& f) { return f.rule == "W3"; });
  verdict.warnings = warnings_about(args);
  if (c.needs_one_connection() && !c.variable("CUDA_DEVICE_MAX_CONNECTIONS"))
    verdict.required_env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1";
  return verdict;
}

}  // namespace meshwright
