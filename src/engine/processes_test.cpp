// Ranks as real processes over Gloo: src/engine/comm_probe_main.cpp, one process per rank.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "engine/run_store.h"

namespace meshwright {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Machines that do much else start processes late.
constexpr milliseconds kLong(60000);

/// Holds a port: no other test gets it while this lives.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* a = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, a, length) != 0 || getsockname(fd_, a, &length) != 0) ADD_FAILURE() << "no port";
    number = ntohs(address.sin_port);
  }
  ~Port() { let_go(); }
  void let_go() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void occupy() { ASSERT_EQ(listen(fd_, 1), 0); }
  int number = 0;

 private:
  int fd_;
};

int free_port() { return Port().number; }

struct Process {
  pid_t pid = -1;
  std::filesystem::path output;  // stdout and stderr
  std::optional<int> status;     // exit status, 1000 + the signal; none: still runs

  std::string text() const {
    std::ifstream file(output);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
};

/// Ranks of one run. Kills what still runs at its end.
class Ranks {
 public:
  Ranks(int size, const std::string& task, std::vector<std::string> texts = {},
        std::vector<int> present = {}, int port = 0)
      : processes(size) {
    static int runs = 0;
    directory_ = std::filesystem::temp_directory_path() /
                 ("meshwright_ranks_" + std::to_string(getpid()) + "_" + std::to_string(runs++));
    std::filesystem::create_directories(directory_);
    if (present.empty()) {
      present.resize(size);
      std::iota(present.begin(), present.end(), 0);
    }
    if (port == 0) port = free_port();
    texts.resize(size);
    for (const int r : present)
      start(processes[r],
            {std::to_string(r), std::to_string(size), std::to_string(port), task, texts[r]});
  }

  ~Ranks() {
    for (Process& p : processes) {
      if (p.pid < 0 || look(p)) continue;
      kill(p.pid, SIGKILL);
      waitpid(p.pid, nullptr, 0);
    }
    std::filesystem::remove_all(directory_);
  }

  /// Until all but `except` have ended; how long that took.
  milliseconds wait(milliseconds limit, int except = -1) {
    return until(limit, [&] {
      bool all = true;
      for (std::size_t r = 0; r < processes.size(); ++r)
        if (static_cast<int>(r) != except && processes[r].pid >= 0 && !look(processes[r]))
          all = false;
      return all;
    });
  }

  void wait_until_all_run() {
    until(kLong, [&] {
      for (const Process& p : processes)
        if (p.text().find("running") == std::string::npos) return false;
      return true;
    });
  }

  std::string all_text() const {
    std::string all;
    for (const Process& p : processes) all += p.text();
    return all;
  }

  std::vector<Process> processes;

 private:
  static milliseconds until(milliseconds limit, const std::function<bool()>& done) {
    const auto start = Clock::now();
    while (!done() && Clock::now() - start < limit) std::this_thread::sleep_for(milliseconds(5));
    return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  }

  static bool look(Process& p) {
    if (p.status) return true;
    int status = 0;
    if (waitpid(p.pid, &status, WNOHANG) != p.pid) return false;
    p.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return true;
  }

  void start(Process& p, const std::vector<std::string>& arguments) {
    const std::string program = MESHWRIGHT_COMM_PROBE;
    p.output = directory_ / arguments[0];
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const int out = open(p.output.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    p.pid = fork();
    if (p.pid == 0) {
      dup2(out, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    close(out);
  }

  std::filesystem::path directory_;
};

class collectives_over_gloo : public testing::TestWithParam<int> {};
TEST_P(collectives_over_gloo, equal_direct_sums_with_the_least_bytes) {
  Ranks ranks(GetParam(), "collectives");
  ranks.wait(kLong);
  for (const Process& p : ranks.processes) EXPECT_EQ(p.status, 0) << p.text();
  EXPECT_EQ(ranks.all_text(), "");
}
INSTANTIATE_TEST_SUITE_P(sizes, collectives_over_gloo, testing::Values(1, 2, 4));

struct Fault {
  int size, rank, signal;
  const char* task;
};

/// Every other rank ends with status 3 and a line that names the lost one and its step.
void expect_all_end(const std::vector<Fault>& faults, milliseconds limit) {
  std::vector<std::unique_ptr<Ranks>> runs;
  for (const Fault& f : faults) runs.push_back(std::make_unique<Ranks>(f.size, f.task));
  for (const auto& run : runs) run->wait_until_all_run();
  for (std::size_t i = 0; i < faults.size(); ++i)
    kill(runs[i]->processes[faults[i].rank].pid, faults[i].signal);
  const auto start = Clock::now();
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const Fault& f = faults[i];
    runs[i]->wait(kLong, f.rank);
    EXPECT_LT(Clock::now() - start, limit) << "rank " << f.rank << " of " << f.size;
    for (int r = 0; r < f.size; ++r) {
      if (r == f.rank) continue;
      const Process& p = runs[i]->processes[r];
      EXPECT_EQ(p.status, 3) << runs[i]->all_text();
      EXPECT_THAT(p.text(), HasSubstr("rank " + std::to_string(f.rank))) << runs[i]->all_text();
    }
    EXPECT_THAT(runs[i]->all_text(), HasSubstr("last in step "));
    EXPECT_THAT(runs[i]->all_text(), Not(HasSubstr("terminate")));
  }
}

// The limit of the probe's watchdog is 2 s, its beat 0.25 s.
TEST(faults, all_end_soon_after_a_rank_that_they_talk_to_is_killed) {
  expect_all_end({{2, 0, SIGKILL, "train"},
                  {2, 1, SIGKILL, "train"},
                  {4, 0, SIGKILL, "train"},
                  {4, 3, SIGKILL, "train"}},
                 milliseconds(3000));
}

TEST(faults, all_end_after_a_rank_that_none_talks_to_is_killed) {
  expect_all_end({{2, 0, SIGKILL, "alone"}, {2, 1, SIGKILL, "alone"}, {4, 2, SIGKILL, "alone"}},
                 milliseconds(5000));
}

TEST(faults, all_end_after_a_rank_is_stopped) {
  expect_all_end({{2, 0, SIGSTOP, "train"},
                  {2, 1, SIGSTOP, "train"},
                  {4, 0, SIGSTOP, "train"},
                  {4, 1, SIGSTOP, "train"},
                  {4, 3, SIGSTOP, "train"}},
                 milliseconds(6000));
}

TEST(faults, a_death_amid_a_message_ends_its_wait) {
  for (const int victim : {0, 1}) {
    for (const int delay : {3, 11}) {
      Ranks ranks(2, "stream");
      ranks.wait_until_all_run();
      std::this_thread::sleep_for(milliseconds(delay));
      kill(ranks.processes[victim].pid, SIGKILL);
      EXPECT_LT(ranks.wait(kLong, victim), milliseconds(2000));
      const Process& other = ranks.processes[1 - victim];
      EXPECT_EQ(other.status, 3);
      EXPECT_THAT(other.text(),
                  HasSubstr("the connection to rank " + std::to_string(victim) + " is lost"));
    }
  }
}

TEST(faults, a_rank_that_fails_tells_the_others) {
  Ranks ranks(4, "fail");
  ranks.wait_until_all_run();
  EXPECT_LT(ranks.wait(kLong), milliseconds(4000));
  for (const Process& p : ranks.processes) {
    EXPECT_EQ(p.status, 3);
    EXPECT_THAT(p.text(), HasSubstr("rank 3 failed: loss is NaN"));
  }
  Ranks aborted(3, "abort");
  aborted.wait(kLong);
  for (const int r : {0, 2})
    EXPECT_THAT(aborted.processes[r].text(), HasSubstr("rank 1 failed: disk full"));
}

TEST(faults, ranks_that_end_in_turn_are_not_lost) {
  Ranks ranks(4, "end");
  ranks.wait(kLong);
  for (const Process& p : ranks.processes) EXPECT_EQ(p.status, 0) << p.text();
}

TEST(faults, a_silent_peer_is_waited_for_no_longer_than_the_timeout) {
  Ranks ranks(2, "silent");
  ranks.wait(kLong);
  EXPECT_THAT(ranks.processes[0].text(),
              HasSubstr("rank 0: the receive from rank 1 with tag 77 took longer than"));
}

TEST(rendezvous, missing_ranks_are_named) {
  Ranks ranks(4, "brief", {}, {0, 3});
  ranks.wait(kLong);
  for (const int r : {0, 3}) {
    EXPECT_EQ(ranks.processes[r].status, 3);
    EXPECT_THAT(ranks.processes[r].text(),
                AnyOf(HasSubstr("ranks 1 and 2 of 4 did not come to 'start' at 127.0.0.1:"),
                      HasSubstr("is gone"), HasSubstr("did not reach rank 0")));
  }
  EXPECT_THAT(ranks.processes[0].text(), HasSubstr("1 and 2"));
}

TEST(rendezvous, without_rank_0_the_address_is_named) {
  Ranks ranks(2, "brief", {}, {1});
  EXPECT_LT(ranks.wait(kLong), milliseconds(10000));
  EXPECT_THAT(ranks.processes[1].text(),
              HasSubstr("within 700 ms: Connection refused (does rank 0 run there"));
}

TEST(rendezvous, a_port_in_use_is_named) {
  Port port;
  port.occupy();
  Ranks ranks(1, "brief", {}, {}, port.number);
  ranks.wait(kLong);
  EXPECT_THAT(ranks.processes[0].text(),
              HasSubstr("port " + std::to_string(port.number) +
                        " cannot be used by rank 0: Address already in use"));
}

TEST(rendezvous, texts_that_differ_name_the_ranks) {
  Ranks ranks(4, "agree", {"a5f0", "a5f0", "77b1", "77b1"});
  ranks.wait(kLong);
  for (const Process& p : ranks.processes) {
    EXPECT_EQ(p.status, 3);
    EXPECT_THAT(p.text(), HasSubstr("ranks disagree on the plan: rank 0 has 'a5f0', ranks 2 and 3 "
                                    "do not"));
  }
  Ranks alike(2, "agree", {"a5f0", "a5f0"});
  alike.wait(kLong);
  for (const Process& p : alike.processes) EXPECT_EQ(p.status, 0) << p.text();
}

Rendezvous alone() {
  Rendezvous r;
  r.master_port = free_port();
  r.timeout = milliseconds(5000);
  return r;
}

TEST(run_store, gets_sets_and_waits) {
  RunStore store(alone());
  EXPECT_EQ(store.get("k"), std::nullopt);
  store.set("k", std::string("a\0b", 3));
  EXPECT_EQ(store.get("k"), std::string("a\0b", 3));
  store.set("k", "");
  EXPECT_EQ(store.get("k"), "");
  RunStore other = store.connect();
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(30));
    other.set("late", "now");
  });
  EXPECT_EQ(store.wait("late", milliseconds(5000)), "now");
  later.join();
  EXPECT_THROW(store.wait("never", milliseconds(20)), Error);
  store.barrier("b", milliseconds(100));
  store.barrier("b", milliseconds(100));
  store.agree("c", "text", milliseconds(100));
}

TEST(run_store, faulty_numbers_are_refused) {
  Rendezvous r = alone();
  r.master_port = 70000;
  EXPECT_THROW(RunStore{r}, Error);
  r = alone();
  r.rank = 1;
  EXPECT_THROW(RunStore{r}, Error);
}

TEST(run_store, a_second_process_of_a_rank_is_refused) {
  Rendezvous r = alone();
  r.size = 2;
  RunStore store(r);
  r.rank = 1;
  RunStore first(r);
  try {
    RunStore second(r);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.message(), HasSubstr("2 processes say that they are rank 1"));
  }
}

TEST(run_store, lists_of_ranks_are_short) {
  EXPECT_EQ(list_ranks({0}), "0");
  EXPECT_EQ(list_ranks({0, 1}), "0 and 1");
  EXPECT_EQ(list_ranks({0, 2, 3, 4, 5, 7}), "0, 2 to 5 and 7");
}

}  // namespace
}  // namespace meshwright
