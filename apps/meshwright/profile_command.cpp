#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "cli.h"
#include "mesh/region.h"
#include "run/profile_job.h"
#include "run/supervise.h"

namespace meshwright::cli {
namespace {

struct ProfileOptions {
  ProfileJob job;
  std::string ranks = "local";
  int port = 0;
};

int device_count(const std::vector<std::string>& plans) {
  int devices = 1;
  for (const std::string& path : plans) {
    const PlanFile file = read_plan_file(path);
    for (const Stage& s : file.plan.stages) {
      for (int i = 0; i < s.mesh.device_count(); ++i) {
        devices = std::max(devices, device_at(s.mesh, mesh_coordinates(s.mesh, i)).value + 1);
      }
    }
  }
  return devices;
}

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
      "this build cannot measure: meshwright-rank was not built, since libtorch was not found", {},
      "install libtorch-dev, libgloo-dev and libopenblas0-pthread (tools/install_deps) and build "
      "again");
}

// The job as a file that ends with the last process that has it open.
int job_descriptor(const ProfileJob& job) {
  const int fd = static_cast<int>(::memfd_create("meshwright-profile", 0));
  const std::string text = profile_job_to_json(job).dump();
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(std::strerror(errno), "memfd_create");
  }
  return fd;
}

// Becomes the rank that torchrun, srun or mpirun started.
int become_rank(const ProfileJob& job) {
  const std::string program = rank_program();
  const std::string path = fmt::format("/proc/self/fd/{}", job_descriptor(job));
  for (const auto& [theirs, ours] :
       {std::pair("SLURM_PROCID", "RANK"), std::pair("SLURM_NTASKS", "WORLD_SIZE"),
        std::pair("OMPI_COMM_WORLD_RANK", "RANK"),
        std::pair("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")}) {
    const char* value = std::getenv(theirs);
    if (value != nullptr) ::setenv(ours, value, 0);
  }
  for (const char* threads : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    ::setenv(threads, "1", 0);
  }
  ::execl(program.c_str(), program.c_str(), path.c_str(), nullptr);
  throw Error(std::strerror(errno), program);
}

int run(const ProfileOptions& o) {
  const ProfileJob job = profile_job_from_json(profile_job_to_json(o.job), "options");
  if (o.ranks == "env") return become_rank(job);
  if (o.ranks != "local" && o.ranks != "none") {
    throw Error(fmt::format("must be local, env or none: '{}'", o.ranks), "--ranks");
  }
  check_writable(job.output, true);
  SuperviseOptions s;
  s.ranks = o.ranks == "none" ? 1 : device_count(job.plans);
  s.master_port = o.port;
  s.stop = &interrupted();
  const int fd = job_descriptor(job);
  // The ranks open it by this process's name of it.
  const std::string path = fmt::format("/proc/{}/fd/{}", ::getpid(), fd);
  const RunEnd end = supervise({rank_program(), {path}}, s);
  ::close(fd);
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
