#include "base/files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "base/error.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Files : public testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "meshwright-files-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~Files() override { fs::remove_all(directory_); }

  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  fs::path directory_;
};

TEST_F(Files, WhatIsWrittenIsRead) {
  const fs::path path = directory_ / "a.bin";
  const std::string content("a\0b\r\n\xff", 6);
  write_file(path, content, false);
  EXPECT_EQ(read_file(path, 6), content);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1)
      << "a temporary file was left behind";
}

TEST_F(Files, ReadRefusesWhatIsNoFile) {
  const fs::path missing = directory_ / "missing";
  EXPECT_EQ(error_of([&] { read_file(missing, 10); }), missing.string() + ": no such file");
  EXPECT_THAT(error_of([&] { read_file(directory_, 10); }), HasSubstr("is a directory"));
}

TEST_F(Files, ReadRefusesLargeFilesBeforeReading) {
  const fs::path path = directory_ / "large";
  write_file(path, "", false);
  fs::resize_file(path, 2ull << 30);  // Sparse.
  EXPECT_THAT(error_of([&] { read_file(path, 1 << 20); }),
              HasSubstr("file is 2.0 GiB, more than the limit of 1.0 MiB"));
}

TEST_F(Files, ReadsPipesUpToTheLimit) {
  const fs::path path = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto read_from_writer = [&](std::uint64_t max_bytes) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::ofstream(path) << "0123456789" << std::flush;
      ::_exit(0);
    }
    return read_file(path, max_bytes);
  };
  EXPECT_EQ(read_from_writer(10), "0123456789");
  EXPECT_THAT(error_of([&] { read_from_writer(9); }), HasSubstr("more than the limit of 9 B"));
}

TEST_F(Files, WriteKeepsWhatIsThere) {
  const fs::path path = directory_ / "plan.json";
  write_file(path, "old", false);
  EXPECT_EQ(error_of([&] { write_file(path, "new", false); }),
            path.string() + ": exists already and is not overwritten (add --force)");
  EXPECT_EQ(read_file(path, 10), "old");
  write_file(path, "new", true);
  EXPECT_EQ(read_file(path, 10), "new");
}

TEST_F(Files, WriteGoesThroughLinks) {
  write_file(directory_ / "target", "old", false);
  std::filesystem::create_symlink(directory_ / "target", directory_ / "link");
  EXPECT_THAT(error_of([&] { write_file(directory_ / "link", "new", false); }),
              HasSubstr("exists already"));
  write_file(directory_ / "link", "new", true);
  EXPECT_TRUE(std::filesystem::is_symlink(directory_ / "link"));
  EXPECT_EQ(read_file(directory_ / "target", 100), "new");
  EXPECT_THAT(error_of([&] { write_file("/dev/null", "new", true); }),
              HasSubstr("is not a regular file"));
}

TEST_F(Files, WriteNeedsADirectory) {
  EXPECT_THAT(error_of([&] { write_file(directory_ / "none" / "x", "", false); }),
              HasSubstr("check that the directory exists"));
  EXPECT_THAT(error_of([&] { write_file(directory_, "", true); }),
              HasSubstr("is not a regular file and is not replaced"));
}

}  // namespace
}  // namespace meshwright
