#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "cli.h"
#include "rank_process.h"
#include "run/profile_job.h"
#include "run/supervise.h"

namespace meshwright::cli {
namespace {

struct ProfileOptions {
  ProfileJob job;
  std::string ranks = "local";
  int port = 0;
};

int most_ranks(const std::vector<std::string>& plans) {
  int ranks = 1;
  for (const std::string& path : plans) {
    ranks = std::max(ranks, rank_count(read_plan_file(path).plan));
  }
  return ranks;
}

int run(const ProfileOptions& o) {
  const ProfileJob job = profile_job_from_json(profile_job_to_json(o.job), "options");
  const std::string text = profile_job_to_json(job).dump();
  if (o.ranks == "env") become_rank(text);
  if (o.ranks != "local" && o.ranks != "none") {
    throw Error(fmt::format("must be local, env or none: '{}'", o.ranks), "--ranks");
  }
  check_writable(job.output, true);
  SuperviseOptions s;
  s.ranks = o.ranks == "none" ? 1 : most_ranks(job.plans);
  s.master_port = o.port;
  s.stop = &interrupted();
  const JobFile file(text);
  const RunEnd end = supervise({rank_program(), {file.path()}}, s);
  if (end.ok) return kOk;
  if (end.interrupted) {
    std::fputs(
        fmt::format("meshwright: interrupted; {} has what was measured\n", job.output).c_str(),
        stderr);
    return 130;
  }
  std::fputs(fmt::format("meshwright: {}\n", end.message).c_str(), stderr);
  return end.exit_code;
}

constexpr const char* kFooter = R"(Examples:
  meshwright profile plan.json -o table.json
  meshwright profile dp.json tp.json pp.json -o table.json --repeat 30 --budget 120
  meshwright profile plan.json -o table.json --ranks none
  torchrun --nproc-per-node 8 --no-python meshwright profile plan.json -o table.json --ranks env
  meshwright plan MODEL CLUSTER --profile table.json
Only what the plans need and the table lacks is measured: run it again to go on after an
interruption, or for further plans. Exit code: 0 done, 1 a rank was lost, 2 wrong input, 130
interrupted. docs/profile.md says what is measured and how.)";

}  // namespace

void add_profile(CLI::App& app, Action& action) {
  auto o = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand(
      "profile", "Measure the operators and messages of plans, for the cost model profiled");
  command->footer(kFooter);
  command->add_option("PLAN", o->job.plans, "Plan files (meshwright plan -o)")->required();
  command->add_option("-o,--output", o->job.output, "The table; an existing one is added to")
      ->required();
  command->add_option(
      "--ranks", o->ranks,
      "local: a process per device, here (default); env: be the rank that RANK, "
      "WORLD_SIZE, MASTER_ADDR, MASTER_PORT say; none: operators only, one process");
  command->add_option("--repeat", o->job.repeat, "Times each is measured (default 15)");
  command->add_option("--budget", o->job.budget_seconds,
                      "Begin nothing more after as many seconds; 0 = no limit (default)");
  command->add_option("--dtype", o->job.dtype, "float64, float32 (default) or bfloat16");
  command->add_option("--port", o->port, "For the ranks to meet; default a free one");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
