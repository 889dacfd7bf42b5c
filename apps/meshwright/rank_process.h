#pragma once

#include <string>

namespace meshwright::cli {

/// The program of a rank: beside this one, or in PATH. Throws Error when it was not built.
std::string rank_program();

/// The text of a job as a file that only this process and those it starts can read; it goes with
/// them, however they end.
class JobFile {
 public:
  explicit JobFile(const std::string& text);
  ~JobFile();
  JobFile(const JobFile&) = delete;
  JobFile& operator=(const JobFile&) = delete;
  std::string path() const;

 private:
  int descriptor_ = -1;
};

/// Becomes the rank that torchrun, srun or mpirun started.
[[noreturn]] void become_rank(const std::string& job_text);

}  // namespace meshwright::cli
