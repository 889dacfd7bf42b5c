#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "api/recheck.h"
#include "base/error.h"
#include "base/files.h"
#include "base/spelling.h"
#include "cli.h"
#include "emit/megatron_rules.h"
#include "emit/shell_script.h"
#include "report/engine_report.h"
#include "report/plan_report.h"

namespace meshwright::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> words;  // A plan file, or the engine's options behind --.
  std::string engine;
  std::int64_t world_size = 0;
  std::string command;
  std::string command_file;
  std::vector<std::string> env;
  std::string device;
  bool json = false;
};

int run_plan(const CheckOptions& o) {
  if (o.words.size() != 1) {
    throw Error(o.words.empty() ? "a plan file is needed" : "one plan file at a time", "arguments",
                "meshwright check plan.json, or meshwright check --engine megatron -- OPTIONS");
  }
  const PlanFile file = open_plan_file(o.words[0]);
  const PlanCheck check = recheck(file);
  if (o.json) {
    Json violations = Json::array();
    for (const Violation& v : check.violations) {
      violations.push_back({{"rule", v.rule}, {"message", v.message}, {"hint", v.hint}});
    }
    Json memory = Json::array();
    if (check.judged) {
      for (const MemoryBreakdown& m : check.judged->timeline.memory) {
        memory.push_back(m.total().value);
      }
    }
    const Json json = {{"ok", check.ok()},
                       {"violations", std::move(violations)},
                       {"memory_bytes_per_stage", std::move(memory)}};
    print(json.dump(2) + "\n");
    return check.ok() ? kOk : kNoPlan;
  }
  print(
      fmt::format("{}: {} on {}\n", o.words[0], file.loaded.model_name, file.loaded.cluster.name));
  if (check.ok()) {
    print("every rule holds and every stage fits\n");
  } else {
    print(fmt::format("{} rule{} broken\n", check.violations.size(),
                      check.violations.size() == 1 ? " is" : "s are"));
  }
  for (const Violation& v : check.violations) {
    print(fmt::format("  {:<4} {}{}\n", v.rule, v.message, v.hint.empty() ? "" : "; " + v.hint));
  }
  if (check.judged) print("\n" + memory_table(file.loaded.problem(), *check.judged));
  return check.ok() ? kOk : kNoPlan;
}

std::map<std::string, std::string> read_env(const std::vector<std::string>& assignments) {
  std::map<std::string, std::string> env;
  for (const std::string& text : assignments) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(fmt::format("{} is not KEY=VALUE", in_quotes(text)), "--env",
                  "such as CUDA_DEVICE_MAX_CONNECTIONS=1");
    }
    env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return env;
}

MegatronCommand read_command(const CheckOptions& o, const std::map<std::string, std::string>& env) {
  const int sources = !o.words.empty() + !o.command.empty() + !o.command_file.empty();
  if (sources != 1) {
    throw Error(sources == 0 ? "no options to check" : "more than one source of options",
                "arguments", "one of: -- OPTIONS, --command TEXT, --command-file FILE");
  }
  if (!o.words.empty()) return parse_megatron_command(o.words);
  if (!o.command.empty()) return parse_megatron_command(o.command);
  constexpr std::uint64_t kMaxScript = std::uint64_t{1} << 20;
  try {
    ShellCommand script = read_shell_script(read_file(o.command_file, kMaxScript), env);
    for (const auto& [name, value] : script.env) {
      script.words.insert(script.words.begin(), fmt::format("{}={}", name, value));
    }
    return parse_megatron_command(script.words);
  } catch (const Error& e) {
    if (e.where().starts_with(o.command_file)) throw;
    const bool variable = e.message().find('$') != std::string::npos;
    throw Error(e.message(), e.within(o.command_file).where(),
                variable ? "give the variable with --env NAME=VALUE" : e.hint());
  }
}

int compute_capability(const std::string& device) {
  const DeviceKind& kind = find_device(device);
  return kind.architecture.starts_with("blackwell") ? 10 : 9;
}

int run_engine(const CheckOptions& o) {
  if (o.engine != "megatron") {
    throw Error(fmt::format("unknown engine {}", in_quotes(o.engine)), "--engine",
                "known: megatron");
  }
  const auto env = read_env(o.env);
  MegatronCommand command = read_command(o, env);
  for (const auto& [name, value] : env) command.env[name] = value;
  if (o.world_size < 0)
    throw Error(fmt::format("must be at least 1: {}", o.world_size), "--world-size");
  if (o.world_size > 0) command.world_size = o.world_size;
  if (!command.world_size) {
    throw Error("the number of ranks is not known", "--world-size",
                "give --world-size N, or a command with --nproc-per-node and --nnodes");
  }
  MegatronPlatform platform;
  if (!o.device.empty()) platform.compute_capability = compute_capability(o.device);
  const MegatronVerdict verdict =
      check_megatron(command.args, *command.world_size, command.env, platform);
  if (o.json) {
    print(verdict_to_json(*command.world_size, verdict).dump(2) + "\n");
  } else {
    print(verdict_text(command.args, *command.world_size, verdict));
  }
  return verdict.fine ? kOk : kNoPlan;
}

int run(const CheckOptions& o) {
  if (!o.engine.empty()) return run_engine(o);
  if (!o.command.empty() || !o.command_file.empty() || o.world_size != 0 || !o.env.empty()) {
    throw Error("is missing", "--engine", "--engine megatron");
  }
  return run_plan(o);
}

constexpr const char* kFooter = R"(Examples:
  meshwright check plan.json
  meshwright check --engine megatron --world-size 64 -- --num-layers 32 --hidden-size 4096 ...
  meshwright check --engine megatron --command "torchrun --nproc-per-node 8 pretrain_gpt.py ..."
  meshwright check --engine megatron --command-file launch/launch.sh --env NODES=4
A script is read, not run: assignments, arrays and exports before its training command are followed,
variables that only the run knows come from --env.
Exit code: 0 accepted and fine, 1 rules are broken or the run would misbehave, 2 wrong input.)";

}  // namespace

void add_check(CLI::App& app, Action& action) {
  auto o = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand(
      "check", "Check a plan file, or the options of a training engine, against every rule");
  command->footer(kFooter);
  command->add_option("PLAN", o->words, "A plan file; with --engine: -- and the engine's options");
  command->add_option("--engine", o->engine, "Check options of this engine: megatron (0.20)");
  command->add_option("--world-size", o->world_size, "Ranks (default: what the command says)");
  command->add_option("--command", o->command, "A whole command in one text");
  command->add_option("--command-file", o->command_file,
                      "A file with a command, or a launch script");
  command->add_option("--env", o->env, "KEY=VALUE of the run's environment (several)")
      ->allow_extra_args(false);
  command->add_option("--device", o->device, "What it runs on, such as b200 (default: h100)");
  command->add_flag("--json", o->json, "Print the verdict as JSON");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
