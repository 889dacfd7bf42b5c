#include "run/supervise.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "run/spawn.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kPlace =
    " at step 2, forward of chunk 1, micro-batch 2, instruction 17: linear layers.1.mlp.up";

RankCommand fake_rank(std::vector<std::string> arguments) {
  return {MESHWRIGHT_FAKE_RANK, std::move(arguments)};
}

// Ranks whose stdout is nobody's.
SuperviseOptions quick(int ranks) {
  SuperviseOptions options;
  options.ranks = ranks;
  options.output = -1;
  options.beat_limit_ms = 1500;
  options.grace_ms = 300;
  return options;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class Supervise : public testing::Test {
 protected:
  Supervise() {
    std::string name = (fs::temp_directory_path() / "meshwright-pids-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~Supervise() override { fs::remove_all(directory_); }

  std::string pids() const { return "pids=" + directory_.string(); }

  // Process id -> rank, of all that have started.
  std::map<pid_t, int> started() const {
    std::map<pid_t, int> result;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      int rank = -1;
      FILE* file = std::fopen(entry.path().c_str(), "r");
      if (file != nullptr && std::fscanf(file, "%d", &rank) == 1) {
        result[std::stoi(entry.path().filename().string())] = rank;
      }
      if (file != nullptr) std::fclose(file);
    }
    return result;
  }
  void wait_for_start(std::size_t ranks) const {
    for (int i = 0; i < 2000 && started().size() < ranks; ++i) ::usleep(5000);
    ASSERT_EQ(started().size(), ranks);
  }
  void expect_none_left() const {
    for (const auto& [pid, rank] : started()) {
      EXPECT_NE(::kill(pid, 0), 0) << "rank " << rank << " lives as " << pid;
    }
  }

  // What a fault at step 2 leads to.
  RunEnd fault(int ranks, const std::string& action, const std::string& peers = "blame") const {
    const RunEnd end = supervise(
        fake_rank({"steps=1000", "step_ms=10", "peers=" + peers, "fault=" + action, pids()}),
        quick(ranks));
    EXPECT_FALSE(end.ok);
    EXPECT_LT(end.seconds, 10);
    expect_none_left();
    return end;
  }

  fs::path directory_;
};

TEST_F(Supervise, EightRanksEndWell) {
  const RunEnd end = supervise(fake_rank({"steps=5", pids()}), quick(8));
  EXPECT_TRUE(end.ok) << end.message;
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.culprit, -1);
  EXPECT_EQ(end.message, "");
  EXPECT_EQ(started().size(), 8u);
  expect_none_left();
}

TEST_F(Supervise, OutputIsRankZeroInOrderAndErrorsAreKeptByRank) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  SuperviseOptions options = quick(3);
  options.output = ends[1];
  const RunEnd end = supervise(fake_rank({"steps=4", "spell=1", "facts=1"}), options);
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t count = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ASSERT_GT(count, 0);
  text.resize(static_cast<std::size_t>(count));
  EXPECT_EQ(text, fmt::format("core {} threads 1 wait passive\nstep 0 of rank 0\nstep 1 of rank 0\n"
                              "step 2 of rank 0\nstep 3 of rank 0\n",
                              allowed_cores()[0]));
  ASSERT_EQ(end.errors.size(), 3u);
  EXPECT_EQ(end.errors[2], "rank 2 says 0\nrank 2 says 1\nrank 2 says 2\nrank 2 says 3\n");
}

TEST_F(Supervise, AKilledRankIsNamedAndNotThoseThatLostIt) {
  for (const std::string peers : {"blame", "plain"}) {
    const RunEnd end = fault(4, "2:2:kill", peers);
    EXPECT_EQ(end.culprit, 2);
    EXPECT_EQ(end.exit_code, 1);
    EXPECT_EQ(end.message, std::string("rank 2 was killed by signal 9 (SIGKILL)") + kPlace);
    EXPECT_LT(end.seconds, 3);
  }
  EXPECT_THAT(fault(2, "0:2:segv").message, StartsWith("rank 0 was killed by signal 11 (SIGSEGV)"));
}

TEST_F(Supervise, AStoppedRankIsNamedAndNotThoseThatWaitForIt) {
  const RunEnd end = fault(4, "1:2:stop");
  EXPECT_EQ(end.culprit, 1);
  EXPECT_THAT(end.message, AllOf(StartsWith("rank 1 is stopped by a signal and has not answered "
                                            "for 1."),
                                 HasSubstr(kPlace)));
}

TEST_F(Supervise, SilenceIsAFaultOnceTheRankHasBeaten) {
  const RunEnd end = fault(3, "0:2:mute");
  EXPECT_EQ(end.culprit, 0);
  EXPECT_THAT(end.message, AllOf(StartsWith("rank 0 has not answered for 1."), HasSubstr(kPlace)));
}

TEST_F(Supervise, ARankStoppedBeforeItsFirstBeatIsNamed) {
  const RunEnd end = fault(2, "1:0:stop_early");
  EXPECT_EQ(end.culprit, 1);
  EXPECT_THAT(end.message,
              AllOf(StartsWith("rank 1 is stopped by a signal"), HasSubstr("while being loaded")));
}

TEST_F(Supervise, APlainProgramMustBeatBeforeTheStartLimit) {
  SuperviseOptions options = quick(2);
  EXPECT_TRUE(supervise({"true", {}}, options).ok);
  options.start_limit_ms = 1500;
  const RunEnd end = supervise({"sleep", {"100"}}, options);
  EXPECT_THAT(end.message, AllOf(StartsWith("rank "), HasSubstr(" has not answered for 1."),
                                 HasSubstr(" s while "
                                           "being loaded")));
}

TEST_F(Supervise, AnExceptionIsTheMessage) {
  const RunEnd end = fault(3, "1:2:nan");
  EXPECT_EQ(end.culprit, 1);
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_EQ(end.message,
            "rank 1 failed: the loss is nan (at step 2, forward of chunk 1, "
            "micro-batch 2, instruction 17: linear layers.1.mlp.up)");
  // Peers that do not say whom they lost fail later.
  EXPECT_EQ(fault(3, "1:2:nan", "plain").culprit, 1);
}

TEST_F(Supervise, AUsersErrorKeepsItsCode) {
  const RunEnd end = fault(2, "1:2:user");
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.culprit, 1);
  EXPECT_THAT(end.message, StartsWith("rank 1 failed: the plan is for 4 ranks, not 2"));
}

TEST_F(Supervise, ExitCodesComeWithTheLastWords) {
  RunEnd end = fault(2, "0:2:exit3");
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_EQ(end.culprit, 0);
  EXPECT_EQ(end.message,
            fmt::format("rank 0 exited with code 3{}; its last words: the disk is full", kPlace));
  end = fault(2, "1:2:exit0");
  EXPECT_EQ(end.culprit, 1);
  EXPECT_EQ(end.message, std::string("rank 1 exited before its work was done") + kPlace);
  end = fault(2, "1:2:terminate");
  EXPECT_EQ(end.culprit, 1);
  EXPECT_THAT(end.message, AllOf(StartsWith("rank 1 was killed by signal 6 (SIGABRT)"),
                                 HasSubstr("what():  from a thread")));
}

TEST_F(Supervise, MuchOnStderrNeitherBlocksNorFillsMemory) {
  const RunEnd end = fault(2, "1:2:chatter");
  EXPECT_EQ(end.culprit, 1);
  EXPECT_THAT(end.message, HasSubstr("its last words: line 19999 of much"));
  EXPECT_LE(end.errors[1].size(), 4096u);
}

TEST_F(Supervise, WhenAllBeatAndNobodyGetsOnAllPlacesAreNamed) {
  SuperviseOptions options = quick(3);
  options.progress_limit_ms = 1000;
  const RunEnd end = supervise(fake_rank({"steps=1000", "fault=1:2:hang", pids()}), options);
  EXPECT_EQ(end.culprit, -1);
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.message, AllOf(StartsWith("no rank has got on for 1."),
                                 HasSubstr(" s (deadlock?): "
                                           "rank 0 at step 2, meeting; rank 1 at step 2, forward"),
                                 HasSubstr("; rank 2 at step 2, meeting")));
  EXPECT_LT(end.seconds, 5);
  expect_none_left();
}

TEST_F(Supervise, InterruptedRanksEndAfterTheSameStep) {
  std::atomic<bool> stop = false;
  SuperviseOptions options = quick(4);
  options.stop = &stop;
  std::thread user([&] {
    wait_for_start(4);
    ::usleep(100'000);
    stop = true;
  });
  const RunEnd end = supervise(fake_rank({"steps=100000", "step_ms=20", pids()}), options);
  user.join();
  EXPECT_TRUE(end.interrupted);
  EXPECT_FALSE(end.ok);
  EXPECT_EQ(end.exit_code, 130);
  EXPECT_EQ(end.culprit, -1);
  EXPECT_THAT(end.message, StartsWith("interrupted; all ranks ended after step "));
  EXPECT_LT(end.seconds, 5);
  expect_none_left();
}

TEST_F(Supervise, InterruptedRanksThatDoNotAskGetSigterm) {
  std::atomic<bool> stop = false;
  SuperviseOptions options = quick(2);
  options.stop = &stop;
  std::thread user([&] {
    wait_for_start(2);
    stop = true;
  });
  const RunEnd end =
      supervise(fake_rank({"steps=100000", "peers=none", "gate=0", pids()}), options);
  user.join();
  EXPECT_EQ(end.message, "interrupted");
  EXPECT_LT(end.seconds, 5);
  expect_none_left();
}

TEST_F(Supervise, InterruptedRanksThatDoNotEndAreKilled) {
  std::atomic<bool> stop = false, stop_now = false;
  SuperviseOptions options = quick(2);
  options.stop = &stop;
  options.stop_now = &stop_now;
  options.interrupt_grace_ms = 500;
  std::thread user([&] {
    wait_for_start(2);
    ::usleep(300'000);
    stop = true;
  });
  RunEnd end = supervise(fake_rank({"steps=9", "step_ms=60000", "peers=none", pids()}), options);
  user.join();
  EXPECT_EQ(end.message, "interrupted; killed before they had ended: ranks 0, 1");
  EXPECT_LT(end.seconds, 5);
  expect_none_left();

  // The second Ctrl-C does not wait.
  options.interrupt_grace_ms = 60000;
  stop_now = true;
  end = supervise(fake_rank({"steps=9", "step_ms=60000", "peers=none"}), options);
  EXPECT_TRUE(end.interrupted);
  EXPECT_LT(end.seconds, 2);
}

TEST_F(Supervise, NothingOutlivesASupervisorThatIsKilled) {
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    supervise(fake_rank({"steps=100000", pids()}), quick(4));
    ::_exit(0);
  }
  wait_for_start(4);
  ::kill(supervisor, SIGKILL);
  ASSERT_EQ(::waitpid(supervisor, nullptr, 0), supervisor);
  // What is left of them is whoever reaps orphans here to take: a zombie runs no more.
  const auto ended = [](pid_t pid) {
    const char state = process_state(pid);
    return state == '?' || state == 'Z' || state == 'X';
  };
  for (const auto& [pid, rank] : started()) {
    for (int i = 0; i < 400 && !ended(pid); ++i) ::usleep(5000);
    EXPECT_TRUE(ended(pid)) << "rank " << rank << " lives as " << pid;
  }
}

TEST_F(Supervise, WhatCannotStartSaysWhy) {
  EXPECT_EQ(error_of([] { supervise({"/no/such", {}}, quick(1)); }),
            "/no/such: is no program that can be run");
  EXPECT_THAT(error_of([] { supervise({"no-such-program", {}}, quick(1)); }),
              StartsWith("no program is named \"no-such-program\""));
  EXPECT_EQ(error_of([] { supervise({"true", {}}, quick(0)); }),
            "0 ranks cannot be started here: between 1 and 1024 can");
  EXPECT_THAT(error_of([] { supervise({"true", {}}, quick(1025)); }), StartsWith("1025 ranks"));
  SuperviseOptions options = quick(1);
  options.master_port = 70000;
  EXPECT_EQ(error_of([&] { supervise({"true", {}}, options); }), "port 70000 is not in 0..65535");
}

TEST_F(Supervise, APortInUseIsRefused) {
  const Descriptor server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(server.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(server.get(), 1), 0);
  ::getsockname(server.get(), reinterpret_cast<sockaddr*>(&address), &length);
  SuperviseOptions options = quick(2);
  options.master_port = ntohs(address.sin_port);
  EXPECT_THAT(error_of([&] { supervise(fake_rank({pids()}), options); }),
              AllOf(StartsWith(fmt::format("port {} cannot be had: Address already in use",
                                           options.master_port)),
                    HasSubstr("name another port")));
  EXPECT_TRUE(started().empty());
}

TEST_F(Supervise, WhenTheSystemAllowsNoMoreAllThatStartedAreEnded) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 40;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::string error =
      error_of([&] { supervise(fake_rank({"steps=100000", "peers=none", pids()}), quick(100)); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(error, AllOf(StartsWith("rank "), HasSubstr(" of 100: "), HasSubstr("ulimit -n")));
  expect_none_left();
}

// Whoever is killed or stopped whenever: the run ends in time and names it.
TEST_F(Supervise, RandomFaults) {
  std::mt19937 random(20240607);
  constexpr int kCases = 120;
  double slowest_kill = 0, slowest_stop = 0;
  for (int i = 0; i < kCases; ++i) {
    const fs::path place = directory_ / std::to_string(i);
    fs::create_directory(place);
    SuperviseOptions options = quick(2 + static_cast<int>(random() % 7));
    options.beat_limit_ms = 1000;  // Beats come every 250 ms.
    options.grace_ms = 200;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(options.ranks));
    const bool stop = random() % 6 == 0;
    const bool blame = random() % 2 == 0;
    const auto delay = static_cast<useconds_t>(random() % 60'000);
    double fault_time = 0;
    const auto now = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    std::thread killer([&] {
      pid_t pid = -1;
      for (int tries = 0; tries < 4000 && pid < 0; ++tries) {
        ::usleep(1000);
        for (const auto& entry : fs::directory_iterator(place)) {
          int rank = -1;
          FILE* file = std::fopen(entry.path().c_str(), "r");
          if (file != nullptr && std::fscanf(file, "%d", &rank) == 1 && rank == victim) {
            pid = std::stoi(entry.path().filename().string());
          }
          if (file != nullptr) std::fclose(file);
        }
      }
      ::usleep(delay);
      fault_time = now();
      if (pid > 0) ::kill(pid, stop ? SIGSTOP : SIGKILL);
    });
    const RunEnd end =
        supervise(fake_rank({"steps=100000", "step_ms=1", blame ? "peers=blame" : "peers=plain",
                             "pids=" + place.string()}),
                  options);
    const double ended = now();
    killer.join();
    const std::string about = fmt::format("case {}: rank {} of {} {}", i, victim, options.ranks,
                                          stop ? "stopped" : "killed");
    EXPECT_EQ(end.culprit, victim) << about << ": " << end.message;
    EXPECT_THAT(end.message, HasSubstr(stop ? "is stopped by a signal" : "(SIGKILL)")) << about;
    EXPECT_LT(ended - fault_time, 10) << about;
    (stop ? slowest_stop : slowest_kill) =
        std::max(stop ? slowest_stop : slowest_kill, ended - fault_time);
    for (const auto& entry : fs::directory_iterator(place)) {
      EXPECT_NE(::kill(std::stoi(entry.path().filename().string()), 0), 0) << about;
    }
  }
  RecordProperty("slowest_kill_s", std::to_string(slowest_kill));
  RecordProperty("slowest_stop_s", std::to_string(slowest_stop));
}

}  // namespace
}  // namespace meshwright
