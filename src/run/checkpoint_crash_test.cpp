// Writers that are killed or run out of room.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "run/checkpoint_folders.h"
#include "run/checkpoint_test_data.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// What `call` returns in a process of its own.
std::string in_child(const std::function<std::string()>& call) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string answer;
    try {
      answer = call();
    } catch (const std::exception& e) {
      answer = e.what();
    }
    const auto written = ::write(ends[1], answer.data(), answer.size());
    ::_exit(written < 0);
  }
  ::close(ends[1]);
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return answer;
}

enum class End { kKilled, kFinished, kNotAllowed };

// Runs `call` in a process that is killed before its `stop`-th entry into or return from the
// kernel.
End run_until(int stop, const std::function<void()>& call) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    try {
      call();
    } catch (const std::exception&) {  // Then the new checkpoint is missing at the end.
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return End::kNotAllowed;
  for (int i = 0; i < stop; ++i) {
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) break;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) return End::kFinished;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return End::kKilled;
}

TEST_F(CheckpointTest, KilledAtAnyMomentTheOldOrTheNewIsThere) {
  const fs::path directory = directory_ / "checkpoints";
  int kills = 0, old = 0;
  for (int stop = 1;; ++stop) {
    fs::remove_all(directory);
    for (const std::int64_t step : {90, 100}) {
      write_flat(directory, test_info(step), small_tensors(static_cast<std::uint64_t>(step)), 2);
      complete_checkpoint(directory, step, 2);
    }
    const End end = run_until(stop, [&] {
      write_flat(directory, test_info(110), small_tensors(110), 2);
      complete_checkpoint(directory, 110, 2);
    });
    if (end == End::kNotAllowed) GTEST_SKIP() << "processes may not be traced here";
    CheckpointReader reader(directory);
    reader.verify();
    ASSERT_TRUE(reader.info().step == 100 || reader.info().step == 110);
    ASSERT_TRUE(holds_all(directory, small_tensors(static_cast<std::uint64_t>(reader.info().step))))
        << "killed at stop " << stop;
    ++kills;
    old += reader.info().step == 100;
    if (end == End::kFinished) {
      EXPECT_EQ(reader.info().step, 110);
      break;
    }
    // The next checkpoint clears what the dead writers left.
    write_flat(directory, test_info(120), small_tensors(120), 1);
    complete_checkpoint(directory, 120, 1, 1);
    ASSERT_THAT(names_below(directory),
                ElementsAre("step-00000120", "step-00000120/manifest.json",
                            "step-00000120/rank-0000.bin", "step-00000120/rank-0000.json"))
        << "killed at stop " << stop;
  }
  EXPECT_GT(old, 50);
  EXPECT_GT(kills - old, 10);
}

TEST_F(CheckpointTest, KilledWhileReplacingTheOldOrTheNewIsThere) {
  const fs::path directory = directory_ / "checkpoints";
  int old = 0, fresh = 0;
  for (int stop = 1;; ++stop) {
    fs::remove_all(directory);
    write_flat(directory, test_info(100), small_tensors(1), 2);
    complete_checkpoint(directory, 100, 2);
    const End end = run_until(stop, [&] {
      write_flat(directory, test_info(100), small_tensors(2), 1);
      complete_checkpoint(directory, 100, 1);
    });
    if (end == End::kNotAllowed) GTEST_SKIP() << "processes may not be traced here";
    const bool is_old = holds_all(directory, small_tensors(1));
    ASSERT_NE(is_old, holds_all(directory, small_tensors(2))) << "killed at stop " << stop;
    (is_old ? old : fresh)++;
    if (end == End::kFinished) break;
  }
  EXPECT_GT(old, 30);
  EXPECT_GT(fresh, 10);
}

// What the Error says, then the names that are left.
std::string fill_up(const fs::path& directory, std::int64_t step, std::size_t bytes) {
  const TestTensor tensor =
      make_tensor("big", "parameter", DType::kU8, {static_cast<std::int64_t>(bytes)}, 1);
  const std::string error = error_of([&] { write_flat(directory, test_info(step), {tensor}, 1); });
  return fmt::format("{}\n{}", error, fmt::join(names_below(directory), " "));
}

constexpr std::string_view kOnlyTheOld =
    "step-00000100 step-00000100/manifest.json step-00000100/rank-0000.bin "
    "step-00000100/rank-0000.json";

TEST_F(CheckpointTest, AFullDisk) {
  const std::string answer = in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", directory_.c_str(), "tmpfs", 0, "size=128k") != 0) {
      return "skip";
    }
    write_small(100, 1);
    return fill_up(directory_, 110, 1 << 20);
  });
  if (answer == "skip") GTEST_SKIP() << "file systems may not be mounted here";
  EXPECT_THAT(answer, AllOf(HasSubstr(".step-00000110.partial/rank-0000.bin"),
                            HasSubstr("cannot be written: No space left on device; the last "
                                      "completed checkpoint is step 100"),
                            testing::EndsWith("\n" + std::string(kOnlyTheOld))));
}

TEST_F(CheckpointTest, AFileThatMayNotGrow) {
  write_small(100, 1);
  // Each limit stops another write: head, data, or the index behind small data.
  for (const rlim_t limit : {10, 50'000, 250}) {
    const std::string answer = in_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit most{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &most);
      return fill_up(directory_, 110, limit == 250 ? 100 : 1 << 20);
    });
    EXPECT_THAT(answer,
                AllOf(HasSubstr(limit == 250 ? "rank-0000.json" : "rank-0000.bin"),
                      HasSubstr("cannot be written: File too large; the last completed checkpoint "
                                "is step 100"),
                      testing::EndsWith("\n" + std::string(kOnlyTheOld))))
        << limit;
  }
  // The manifest of many ranks is larger than any of their files.
  const TestTensor tensor = make_tensor("w", "p", DType::kU8, {40}, 1);
  write_flat(directory_, test_info(110), {tensor}, 40);
  const std::string answer = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit most{500, 500};
    ::setrlimit(RLIMIT_FSIZE, &most);
    return error_of([&] { complete_checkpoint(directory_, 110, 40); });
  });
  EXPECT_THAT(answer, AllOf(HasSubstr("manifest.json"), HasSubstr("File too large; the last "
                                                                  "completed checkpoint is step "
                                                                  "100")));
  EXPECT_EQ(fmt::format("{}", fmt::join(names_below(directory_), " ")), kOnlyTheOld);
}

TEST_F(CheckpointTest, NoPermissionIsNamed) {
  put_content(directory_ / "file", "");
  EXPECT_THAT(error_of([&] { CheckpointWriter(directory_ / "file", test_info(1), 0, 1); }),
              AllOf(HasSubstr("cannot be made"), HasSubstr("there is no completed checkpoint")));
}

// Where the file system cannot swap two folders.
TEST_F(CheckpointTest, FoldersAreReplacedWithoutASwap) {
  const fs::path from = directory_ / "new", to = directory_ / "place", aside = directory_ / "old";
  fs::create_directory(from);
  put_content(from / "a", "new");
  put_folder(from, to, aside, false);
  EXPECT_THAT(names_below(directory_), ElementsAre("place", "place/a"));
  fs::create_directory(from);
  put_content(from / "a", "newer");
  put_folder(from, to, aside, false);
  EXPECT_THAT(names_below(directory_), ElementsAre("old", "old/a", "place", "place/a"));
  EXPECT_EQ(file_content(to / "a"), "newer");
  EXPECT_EQ(file_content(aside / "a"), "new");
}

}  // namespace
}  // namespace meshwright
