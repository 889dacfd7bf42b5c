#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
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
#include "mesh/region.h"
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
};

// The program of a rank lies beside this one, or in PATH.
std::string rank_program() {
  std::error_code fault;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", fault);
  const auto beside = self.parent_path() / "meshwright-rank";
  if (!fault && std::filesystem::exists(beside, fault)) return beside;
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const auto there = std::filesystem::path(rest.substr(0, colon)) / "meshwright-rank";
    if (::access(there.c_str(), X_OK) == 0) return there;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  throw Error(
      "this build cannot run plans: meshwright-rank was not built, since libtorch was "
      "not found",
      {},
      "install libtorch-dev, libgloo-dev and libopenblas0-pthread (tools/install_deps) "
      "and build again");
}

/// A directory of our own for the file of the job.
class JobFile {
 public:
  explicit JobFile(const Job& job) {
    std::string pattern = (std::filesystem::temp_directory_path() / "meshwright-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw Error(std::strerror(errno), pattern, "set TMPDIR to a directory that can be written");
    }
    directory_ = pattern;
    write_file(path(), job_to_json(job).dump(), true);
  }
  ~JobFile() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  JobFile(const JobFile&) = delete;
  JobFile& operator=(const JobFile&) = delete;
  std::string path() const { return (directory_ / "job.json").string(); }

 private:
  std::filesystem::path directory_;
};

void check_outputs(const Job& job) {
  if (!job.profile.empty()) check_writable(job.profile, true);
}

double predicted_step(const PlanFile& file) {
  return judge(file.loaded.problem(), file.plan).step().value;
}

// Becomes the rank that torchrun, srun or mpirun started.
int become_rank(Job job) {
  const std::string program = rank_program();
  try {
    job.predicted_step_seconds = predicted_step(read_plan_file(job.plan));
  } catch (const Error&) {
    // The rank says so, and tells the others.
  }
  // The file is read once; a rank that is exec'ed cannot remove it, so it goes by descriptor.
  const int fd = static_cast<int>(::memfd_create("meshwright-job", 0));
  const std::string text = job_to_json(job).dump();
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(std::strerror(errno), "memfd_create");
  }
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  for (const auto& [slurm, name] :
       {std::pair("SLURM_PROCID", "RANK"), std::pair("SLURM_NTASKS", "WORLD_SIZE"),
        std::pair("OMPI_COMM_WORLD_RANK", "RANK"),
        std::pair("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")}) {
    const char* value = std::getenv(slurm);
    if (value != nullptr) ::setenv(name, value, 0);
  }
  for (const char* threads : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    ::setenv(threads, "1", 0);
  }
  ::execl(program.c_str(), program.c_str(), path.c_str(), nullptr);
  throw Error(std::strerror(errno), program);
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
    o.job.predicted_step_seconds = predicted_step(file);
    const JobFile job(o.job);
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
  check_outputs(o.job);
  if (o.ranks == "local") return run_local(std::move(o));
  if (o.restarts > 0 || o.port != 0) {
    throw Error("is the launcher's with --ranks env", o.port != 0 ? "--port" : "--restart",
                "torchrun --max-restarts; MASTER_PORT");
  }
  return become_rank(std::move(o.job));
}

constexpr const char* kFooter = R"(Examples:
  meshwright run plan.json --steps 20
  meshwright run plan.json --steps 3 --dtype float64 --verify
  meshwright run plan.json --data tokens.bin --checkpoint runs/a --checkpoint-every 100
  torchrun --nproc-per-node 8 --no-python meshwright run plan.json --ranks env
  srun meshwright run plan.json --ranks env
A rank per device of the plan. Exit code: 0 done, 1 a rank was lost or --verify found a difference,
2 wrong input, 130 interrupted. docs/run.md says what is run and how.)";

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
  command->add_option("--seed", j.seed, "Of parameters, synthetic data and dropout (default 0)");
  command->add_flag("--verify", j.verify, "Also train the model on one device, and compare");
  command->add_option("--tolerance", j.tolerance, "Largest relative difference for --verify");
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
CHECKPOINT is one checkpoint or a directory of them: then the newest. All else is as for run.)");
  command->add_option("CHECKPOINT", o->job.resume, "Where to go on from")->required();
  add_options(command, o);
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
