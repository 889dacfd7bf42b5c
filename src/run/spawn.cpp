#include "run/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/spelling.h"

extern char** environ;

namespace meshwright {
namespace {

constexpr const char* kMoreFiles = "raise the limit of open files (ulimit -n) or use fewer ranks";

bool is_executable(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& own) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced =
        std::any_of(own.begin(), own.end(), [&](const auto& pair) { return pair.first == name; });
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(fmt::format("no pipe for a rank: {}", std::strerror(errno)), {}, kMoreFiles);
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Everything the child needs, made before the fork: between fork and exec only calls that are safe
// in a signal handler are allowed.
struct Child {
  const char* path;
  char* const* arguments;
  char* const* environment;
  pid_t parent;
  int core, input, output, errors, keep, report;
};

[[noreturn]] void run_child(const Child& child) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != child.parent) ::_exit(127);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGQUIT}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (child.core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(child.core), &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  if (::dup2(child.input, STDIN_FILENO) >= 0 && ::dup2(child.output, STDOUT_FILENO) >= 0 &&
      ::dup2(child.errors, STDERR_FILENO) >= 0) {
    if (child.keep >= 0) ::fcntl(child.keep, F_SETFD, 0);
    ::execve(child.path, child.arguments, child.environment);
  }
  const int error = errno;
  (void)!::write(child.report, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    if (is_executable(program)) return program;
    throw Error("is no program that can be run", program);
  }
  const char* path = std::getenv("PATH");
  std::string_view left = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  while (!program.empty()) {
    const std::size_t end = left.find(':');
    const std::string candidate = std::string(left.substr(0, end)) + "/" + program;
    if (candidate[0] == '/' && is_executable(candidate)) return candidate;
    if (end == std::string_view::npos) break;
    left.remove_prefix(end + 1);
  }
  throw Error(fmt::format("no program is named {}", in_quotes(program)), {},
              "give its path, or add its directory to PATH");
}

Process spawn(const SpawnOptions& options) {
  const std::string path = find_program(options.program);
  std::vector<std::string> arguments = options.arguments;
  arguments.insert(arguments.begin(), options.program);
  std::vector<std::string> environment = merged_environment(options.environment);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  auto [errors, errors_end] = make_pipe();
  auto [report, report_end] = make_pipe();
  ::fcntl(errors.get(), F_SETFL, O_NONBLOCK);
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null.get() < 0) {
    throw Error(fmt::format("/dev/null cannot be opened: {}", std::strerror(errno)), {},
                kMoreFiles);
  }

  const Child child{.path = path.c_str(),
                    .arguments = argument_pointers.data(),
                    .environment = environment_pointers.data(),
                    .parent = ::getpid(),
                    .core = options.core,
                    .input = null.get(),
                    .output = options.output >= 0 ? options.output : null.get(),
                    .errors = errors_end.get(),
                    .keep = options.keep,
                    .report = report_end.get()};
  const pid_t pid = ::fork();
  if (pid == 0) run_child(child);
  if (pid < 0) {
    throw Error(fmt::format("no process for a rank: {}", std::strerror(errno)), {},
                "raise the limit of processes (ulimit -u) or use fewer ranks");
  }
  ::setpgid(pid, pid);
  report_end.reset();
  int error = 0;
  // The end of the pipe is the exec: the kernel closes it then.
  ssize_t count = 0;
  while ((count = ::read(report.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (count == static_cast<ssize_t>(sizeof error)) {
    ::waitpid(pid, nullptr, 0);
    throw Error(fmt::format("cannot be run: {}", std::strerror(error)), path);
  }
  Process process;
  process.pid = pid;
  process.errors = std::move(errors);
  return process;
}

std::optional<int> reap(pid_t pid) {
  siginfo_t info{};
  // Left as a zombie until its group is killed, so that its number is nobody else's meanwhile.
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == 0) {
    return std::nullopt;
  }
  ::kill(-pid, SIGKILL);
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) return 0;
  return status;
}

char process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  // The name before it may hold anything, ')' included.
  const std::size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

ReservedPort reserve_port(int port) {
  const auto in_use = [&](int error) {
    return Error(fmt::format("port {} cannot be had: {}", port, std::strerror(error)), {},
                 "name another port, or none to be given a free one");
  };
  if (port < 0 || port > 65535) throw Error(fmt::format("port {} is not in 0..65535", port));
  // Both families at once where the machine has them: a server may listen on either.
  for (const int family : {AF_INET6, AF_INET}) {
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) {
      if (family == AF_INET6) continue;
      throw in_use(errno);
    }
    const int yes = 1, no = 0;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_storage address{};
    socklen_t length = 0;
    if (family == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
      v6.sin6_family = AF_INET6;
      v6.sin6_addr = in6addr_any;
      v6.sin6_port = htons(static_cast<std::uint16_t>(port));
      length = sizeof v6;
    } else {
      auto& v4 = reinterpret_cast<sockaddr_in&>(address);
      v4.sin_family = AF_INET;
      v4.sin_addr.s_addr = htonl(INADDR_ANY);
      v4.sin_port = htons(static_cast<std::uint16_t>(port));
      length = sizeof v4;
    }
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      if (family == AF_INET6 && errno != EADDRINUSE && errno != EACCES) continue;
      throw in_use(errno);
    }
    length = sizeof address;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw in_use(errno);
    }
    // Both families keep the port at the same place.
    ReservedPort reserved;
    reserved.number = ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
    reserved.socket = std::move(socket);
    return reserved;
  }
  throw in_use(EAFNOSUPPORT);
}

}  // namespace meshwright
