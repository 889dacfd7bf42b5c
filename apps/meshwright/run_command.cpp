#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

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
  int port = 0;
  bool no_pin = false;
};

int device_count(const Plan& plan) {
  int devices = 0;
  for (const Stage& s : plan.stages) {
    for (int i = 0; i < s.mesh.device_count(); ++i) {
      devices = std::max(devices, device_at(s.mesh, mesh_coordinates(s.mesh, i)).value + 1);
    }
  }
  return devices;
}

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

// Becomes the rank that torchrun, srun or mpirun started.
int become_rank(const Job& job) {
  const std::string program = rank_program();
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

int run_local(RunOptions o) {
  const std::string program = rank_program();
  for (int attempt = 0;; ++attempt) {
    const PlanFile file = read_plan_file(o.job.plan);
    o.job.predicted_step_seconds = judge(file.loaded.problem(), file.plan).step().value;
    const JobFile job(o.job);
    SuperviseOptions s;
    s.ranks = device_count(file.plan);
    s.master_port = o.port;
    s.pin = !o.no_pin;
    s.stop = &interrupted();
    const RunEnd end = supervise({program, {job.path()}}, s);
    if (end.ok) return kOk;
    if (end.interrupted) {
      std::fputs("meshwright: interrupted\n", stderr);
      return 130;
    }
    // A comparison that failed has said so itself.
    if (end.exit_code != 1 || !o.job.verify || !end.message.empty()) {
      std::fputs(fmt::format("meshwright: {}\n", end.message).c_str(), stderr);
    }
    if (attempt >= o.restarts || end.exit_code == kUserError) return end.exit_code;
    const auto latest = o.job.checkpoint_directory.empty()
                            ? std::nullopt
                            : latest_intact_checkpoint(o.job.checkpoint_directory);
    if (latest) o.job.resume = latest->string();
    if (!o.restart_plan.empty()) o.job.plan = o.restart_plan;
    std::fputs(fmt::format("meshwright: restart {} of {}, from {}\n", attempt + 1, o.restarts,
                           latest ? latest->string() : "the start")
                   .c_str(),
               stderr);
  }
}

int run(RunOptions o) {
  o.job = job_from_json(job_to_json(o.job), "options");
  check_outputs(o.job);
  if (o.restarts > 0 && o.job.checkpoint_directory.empty()) {
    throw Error("a restart goes on from a checkpoint, and none is written", "--restart",
                "give --checkpoint DIR --checkpoint-every N");
  }
  if (o.ranks == "env") return become_rank(o.job);
  if (o.ranks != "local") {
    throw Error(fmt::format("must be local or env: '{}'", o.ranks), "--ranks");
  }
  return run_local(std::move(o));
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
