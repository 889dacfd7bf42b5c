#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/replan.h"
#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "cli.h"
#include "rank_process.h"
#include "run/checkpoint.h"
#include "run/job.h"
#include "run/supervise.h"
#include "search/judge.h"

namespace meshwright::cli {
namespace {

struct RunOptions {
  Job job;
  std::string ranks = "local";
  int restarts = 0;
  std::string restart_plan;
  bool replan = false;
  int port = 0;
  bool no_pin = false;
  bool force = false;
  double tolerance = -1;  ///< Negative: what the numbers allow.
};

// Only rank 0 writes it, and only at the end.
void check_outputs(const RunOptions& o) {
  if (!o.job.profile.empty()) check_writable(o.job.profile, o.force);
}

// As `meshwright run` knows it, where the plan can be read: if not, the rank says so and tells the
// others.
double predicted_step_or_none(const std::string& plan) {
  try {
    const PlanFile file = read_plan_file(plan);
    return judge(file.loaded.problem(), file.plan).step().value;
  } catch (const Error&) {
    return 0;
  }
}

/// What the model's parameters, gradients, activations and optimizer state take on one machine.
void check_memory(const PlanFile& file, const Judged& judged) {
  double need = 0;
  for (std::size_t l = 0; l < judged.timeline.memory.size(); ++l) {
    const MemoryBreakdown& m = judged.timeline.memory[l];
    const Bytes own = m.parameters + m.gradients + m.optimizer + m.activations;
    need += own.value * file.plan.stages[l % file.plan.stages.size()].mesh.device_count();
  }
  const double have =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (need <= have) return;
  throw Error(
      fmt::format("{} local ranks need about {}, and this machine has {}", rank_count(file.plan),
                  format_bytes(Bytes(need)), format_bytes(Bytes(have))),
      "--ranks", "run it on the cluster with --ranks env, or plan a smaller model");
}

// The first signal ends the run after its step, the second at once.
std::atomic<bool> end_soon{false}, end_now{false};

void on_signal(int) {
  constexpr std::string_view kText =
      "\nmeshwright: ending after this step; once more ends at once\n";
  const bool again = end_soon.exchange(true);
  if (again) end_now.store(true);
  if (!again) (void)!::write(STDERR_FILENO, kText.data(), kText.size());
}

void catch_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{}, ours{};
    ours.sa_handler = on_signal;
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &ours, nullptr);
  }
}

/// Shows where rank 0 is while it prints nothing for long.
class Waiting {
 public:
  void show(const std::string& place) {
    const auto now = std::chrono::steady_clock::now();
    const std::string step = place.substr(0, place.find(','));
    if (step != step_) {
      step_ = step;
      since_ = now;
      line_.reset();
    }
    if (now - since_ < std::chrono::seconds(2)) return;
    if (!line_) line_.emplace();
    line_->show("rank 0: " + (place.empty() ? "starting" : place));
  }

 private:
  std::string step_ = "none";
  std::chrono::steady_clock::time_point since_;
  std::optional<ProgressLine> line_;
};

void say(const std::string& text) { std::fputs(("meshwright: " + text + "\n").c_str(), stderr); }

// Where and under which plan a run goes on whose rank `lost` (-1 = not one alone) was lost.
void prepare_restart(RunOptions& o, int attempt, int lost) {
  const auto latest = latest_intact_checkpoint(o.job.checkpoint_directory);
  if (latest) o.job.resume = latest->string();
  if (!o.restart_plan.empty()) {
    o.job.plan = o.restart_plan;
  } else if (o.replan && lost >= 0) {
    const Replan r = plan_without(o.job.plan, lost, o.job.checkpoint_directory,
                                  fmt::format("plan-restart-{}", attempt), &end_soon);
    o.job.plan = r.path;
    say(fmt::format("planned again: {} ({})", r.summary, r.path));
  }
  say(fmt::format("restart {} of {}, from {}", attempt, o.restarts,
                  o.job.resume.empty() ? "the start" : o.job.resume));
  // Seen by the ranks, as torchrun's TORCHELASTIC_RESTART_COUNT.
  ::setenv("MESHWRIGHT_RESTARTS", std::to_string(attempt).c_str(), 1);
}

int run_local(RunOptions o) {
  const std::string program = rank_program();
  catch_signals();
  ::setenv("MESHWRIGHT_RESTARTS", "0", 1);
  for (int attempt = 1;; ++attempt) {
    const PlanFile file = read_plan_file(o.job.plan);
    const Judged judged = judge(file.loaded.problem(), file.plan);
    o.job.predicted_step_seconds = judged.step().value;
    check_memory(file, judged);
    const JobFile job(job_to_json(o.job).dump());
    SuperviseOptions s;
    s.ranks = rank_count(file.plan);
    s.master_port = o.port;
    s.pin = !o.no_pin;
    s.stop = &end_soon;
    s.stop_now = &end_now;
    // A step may take long, and what is asked for is its end.
    s.interrupt_grace_ms = 600'000;
    s.progress_limit_ms = static_cast<int>(std::clamp(o.job.timeout_seconds, 300.0, 1e6) * 1000);
    Waiting waiting;
    s.progress = [&](const std::string& place) { waiting.show(place); };
    const RunEnd end = supervise({program, {job.path()}}, s);
    if (end.ok) return end.exit_code;
    say(end.message);
    if (end.interrupted) return 130;
    // Only what is lost may do better next time.
    if (attempt > o.restarts || end.exit_code != 1) return end.exit_code;
    prepare_restart(o, attempt, end.culprit);
  }
}

/// Errors of settings name the options that set them.
void check_settings(const Job& job) {
  if (job.checkpoint_every > 0 && job.checkpoint_directory.empty()) {
    throw Error(
        fmt::format("a checkpoint every {} steps, but nowhere to write it", job.checkpoint_every),
        "--checkpoint-every", "give --checkpoint DIR");
  }
  try {
    (void)job_to_json(job);
  } catch (const Error& e) {
    std::string option = e.where().substr(e.where().find('/') + 1);
    for (const auto& [key, name] :
         {std::pair("learning_rate", "lr"), std::pair("clip_norm", "clip"),
          std::pair("checkpoint_directory", "checkpoint"),
          std::pair("timeout_seconds", "timeout")}) {
      if (option == key) option = name;
    }
    std::replace(option.begin(), option.end(), '_', '-');
    throw Error(e.message(), "--" + option, e.hint());
  }
}

int run(RunOptions o) {
  if (o.tolerance >= 0) {
    o.job.tolerance = o.tolerance;
  } else {
    o.job.tolerance = o.job.dtype == "float64" ? 1e-9 : o.job.dtype == "bfloat16" ? 0.1 : 1e-3;
  }
  check_settings(o.job);
  if (o.ranks != "local" && o.ranks != "env") {
    throw Error(fmt::format("must be local or env: '{}'", o.ranks), "--ranks");
  }
  if (o.restarts < 0 || o.restarts > 1000) {
    throw Error(fmt::format("must be between 0 and 1000: {}", o.restarts), "--restart");
  }
  if (o.port < 0 || o.port > 65535) {
    throw Error(fmt::format("must be between 1 and 65535, or 0 for a free one: {}", o.port),
                "--port");
  }
  if (o.restarts > 0 && o.job.checkpoint_directory.empty()) {
    throw Error("a restart goes on from a checkpoint, and none is written", "--restart",
                "give --checkpoint DIR --checkpoint-every N");
  }
  if ((o.replan || !o.restart_plan.empty()) && o.restarts == 0) {
    throw Error("says how to restart, and no restart is allowed",
                o.replan ? "--replan" : "--restart-plan", "give --restart N");
  }
  if (o.replan && !o.restart_plan.empty()) {
    throw Error("either the plan to restart with is given, or one is made", "--replan");
  }
  if (!o.restart_plan.empty()) (void)read_plan_file(o.restart_plan);
  check_outputs(o);
  if (o.ranks == "local") return run_local(std::move(o));
  if (o.restarts > 0 || o.port != 0) {
    throw Error("is the launcher's with --ranks env", o.port != 0 ? "--port" : "--restart",
                "torchrun --max-restarts; MASTER_PORT");
  }
  o.job.predicted_step_seconds = predicted_step_or_none(o.job.plan);
  become_rank(job_to_json(o.job).dump());
}

constexpr const char* kFooter = R"(Examples:
  meshwright run plan.json --steps 20
  meshwright run plan.json --steps 3 --dtype float64 --verify
  meshwright run plan.json --data tokens.bin --checkpoint runs/a --checkpoint-every 100
  torchrun --nproc-per-node 8 --no-python meshwright run plan.json --ranks env
  srun meshwright run plan.json --ranks env
A rank per device of the plan. Exit code: 0 done, 1 a rank was lost or --verify found a difference,
2 wrong input, 3 (--ranks env) another rank was lost, 130 interrupted. docs/run.md says what is run and how.)";

void add_options(CLI::App* command, const std::shared_ptr<RunOptions>& o) {
  Job& j = o->job;
  command->add_option("PLAN", j.plan, "A plan file (meshwright plan -o)")->required();
  command->add_option("--steps", j.steps, "Run until this step (default 10)");
  command->add_option("--data", j.data,
                      "Tokens: *.u16 and *.bin hold 16-bit tokens, other files a token a byte; "
                      "default synthetic");
  command->add_option("--ranks", o->ranks,
                      "local: start all as processes here; env: be the rank that RANK, WORLD_SIZE, "
                      "MASTER_ADDR, MASTER_PORT say (or Slurm's, Open MPI's variables)");
  command->add_option("--dtype", j.dtype, "float64, float32 (default) or bfloat16");
  command->add_option("--device", j.device, "cpu (default) or cuda");
  command->add_option("--lr", j.learning_rate, "Learning rate (default 1e-3)");
  command->add_option("--momentum", j.momentum, "Of sgd (default 0.9)");
  command->add_option("--beta1", j.beta1, "Of adam, adamw (default 0.9)");
  command->add_option("--beta2", j.beta2, "Of adam, adamw (default 0.95)");
  command->add_option("--epsilon", j.epsilon, "Of adam, adamw (default 1e-8)");
  command->add_option("--weight-decay", j.weight_decay, "Of adamw (default 0.01)");
  command->add_option("--clip", j.clip_norm, "Largest global gradient norm; 0 = any (default)");
  command->add_option("--seed", j.seed, "Of parameters, synthetic data and dropout (default 0)")
      ->check([](const std::string& text) {
        return text.starts_with('-') ? "must be 0 or more: " + text : std::string();
      });
  command->add_flag("--verify", j.verify, "Also train the model on one device, and compare");
  command->add_option("--tolerance", o->tolerance,
                      "Largest relative difference for --verify; default 1e-9 in float64, 1e-3 in "
                      "float32, 0.1 in bfloat16");
  command->add_option("--checkpoint", j.checkpoint_directory, "Write checkpoints here");
  command->add_option("--checkpoint-every", j.checkpoint_every,
                      "Steps between checkpoints; 0 = one at the end");
  command->add_option("--restart", o->restarts,
                      "Go on from the last checkpoint up to this often when a rank is lost");
  command->add_option("--restart-plan", o->restart_plan,
                      "The plan to go on with then: for fewer devices, say");
  command->add_flag("--replan", o->replan,
                    "Plan again then, for the devices that are left without the lost rank's");
  command->add_option("--profile", j.profile,
                      "Write the last step's timeline, measured and predicted, as a Chrome trace");
  command->add_flag("--force", o->force, "Overwrite the file of --profile");
  command->add_option("--print-every", j.print_every, "Steps between lines; 0 = none");
  command->add_option("--timeout", j.timeout_seconds, "Seconds for a message (default 1800)");
  command->add_option("--port", o->port, "For the ranks to meet; default a free one");
  command->add_flag("--no-pin", o->no_pin, "Do not pin ranks to cores");
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto o = std::make_shared<RunOptions>();
  o->job.steps = 10;
  CLI::App* command = app.add_subcommand("run", "Train a plan's model for real, on libtorch");
  command->footer(kFooter);
  add_options(command, o);
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

void add_resume(CLI::App& app, Action& action) {
  auto o = std::make_shared<RunOptions>();
  o->job.steps = 10;
  CLI::App* command = app.add_subcommand(
      "resume", "Go on from a checkpoint, under the same plan or any other of the model");
  command->footer(R"(Examples:
  meshwright resume runs/a other-plan.json --steps 200
  meshwright resume runs/a/step-00000100 plan.json --steps 200 --checkpoint runs/b
CHECKPOINT is one checkpoint or a directory of them: then the newest. Without --checkpoint further ones
are written beside it. Data and seed are those of the run that goes on. All else is as for run.)");
  command->add_option("CHECKPOINT", o->job.resume, "Where to go on from")->required();
  add_options(command, o);
  command->callback([o, &action] {
    action.run = [o] {
      // Further checkpoints go where the others are.
      if (o->job.checkpoint_directory.empty()) {
        const std::filesystem::path from = o->job.resume;
        const bool one = std::filesystem::exists(from / "manifest.json");
        o->job.checkpoint_directory =
            one ? (from.lexically_normal() / "").parent_path().parent_path().string()
                : from.string();
        if (o->job.checkpoint_directory.empty()) o->job.checkpoint_directory = ".";
      }
      return run(*o);
    };
  });
}

}  // namespace meshwright::cli
