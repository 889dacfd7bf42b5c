#include "rank_process.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace meshwright::cli {

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
      "this build cannot run plans or measure: meshwright-rank was not built, since libtorch was "
      "not found",
      {},
      "install libtorch-dev, libgloo-dev and libopenblas0-pthread (tools/install_deps) and build "
      "again");
}

JobFile::JobFile(const std::string& text)
    : descriptor_(static_cast<int>(::memfd_create("meshwright-job", 0))) {
  if (descriptor_ < 0 ||
      ::write(descriptor_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(std::strerror(errno), "memfd_create");
  }
}

JobFile::~JobFile() { ::close(descriptor_); }

// The ranks open it by this process's name of it.
std::string JobFile::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_); }

void become_rank(const std::string& job_text) {
  const std::string program = rank_program();
  const JobFile job(job_text);
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
  ::execl(program.c_str(), program.c_str(), job.path().c_str(), nullptr);
  throw Error(std::strerror(errno), program);
}

}  // namespace meshwright::cli
