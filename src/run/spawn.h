#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshwright {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { reset(); }
  void reset();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// What to start and what it inherits.
struct SpawnOptions {
  std::string program;  ///< A path, or a name to be found in PATH.
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;  ///< Over this process's own.
  int core = -1;    ///< To be pinned to; -1 = wherever.
  int output = -1;  ///< Its stdout; -1 = dropped.
  int keep = -1;    ///< A descriptor that it inherits under the same number; -1 = none.
};

/// A running process: leader of a process group of its own, killed by the kernel when the thread
/// that started it ends.
struct Process {
  pid_t pid = -1;
  Descriptor errors;  ///< The reading end of its stderr, non-blocking.
};

/// Starts `options.program`. Throws Error when it cannot be found or run, or when the system allows
/// no further process or open file.
Process spawn(const SpawnOptions& options);

/// The path of `program`, as execvp would find it. Throws Error.
std::string find_program(const std::string& program);

/// The wait status of a process that has ended, once; nothing while it runs. What is left of its
/// process group is killed.
std::optional<int> reap(pid_t pid);

/// The kernel's letter for the state of a process ('T' = stopped); '?' when it cannot be had.
char process_state(pid_t pid);

/// The cores that this process may use, ascending.
std::vector<int> allowed_cores();

/// A TCP port of this machine, bound on all addresses but not listened on, so that nobody is given
/// it by chance while a server that sets SO_REUSEADDR can still have it.
struct ReservedPort {
  int number = 0;
  Descriptor socket;
};
/// `port` = 0 takes a free one. Throws Error when it is in use.
ReservedPort reserve_port(int port);

}  // namespace meshwright
