#include "base/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/format.h"

namespace meshwright {
namespace fs = std::filesystem;

std::string read_file(const fs::path& path, std::uint64_t max_bytes) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw Error("no such file", path.string());
  if (fs::is_directory(status)) throw Error("is a directory, not a file", path.string());
  // Pipes and /dev/stdin have no size: read up to the limit. Regular files are refused up front.
  if (fs::is_regular_file(status)) {
    const auto size = fs::file_size(path, error);
    if (!error && size > max_bytes) {
      throw Error(fmt::format("file is {}, more than the limit of {}",
                              format_bytes(Bytes(static_cast<double>(size))),
                              format_bytes(Bytes(static_cast<double>(max_bytes)))),
                  path.string());
    }
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error("cannot be read", path.string(), "check its permissions");
  std::string content;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    content.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (content.size() > max_bytes) {
      throw Error(fmt::format("more than the limit of {}",
                              format_bytes(Bytes(static_cast<double>(max_bytes)))),
                  path.string());
    }
  }
  return content;
}

namespace {

// Through links: their target is what is written. Devices, pipes and directories are left alone.
fs::path writable_target(const fs::path& path, bool overwrite) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(path, error);
  if (error || target.empty()) throw Error("cannot be written: " + error.message(), path.string());
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) {
      throw Error("is not a regular file and is not replaced", path.string(), "name another file");
    }
    if (!overwrite) {
      throw Error("exists already and is not overwritten", path.string(), "add --force");
    }
  } else if (status.type() != fs::file_type::not_found) {
    throw Error("cannot be written: " + error.message(), path.string());
  }
  const fs::path parent = target.parent_path();
  if (!parent.empty() && ::access(parent.c_str(), W_OK) != 0) {
    throw Error("cannot be written", path.string(),
                "check that the directory exists and is writable");
  }
  return target;
}

}  // namespace

void check_writable(const fs::path& path, bool overwrite) { writable_target(path, overwrite); }

void write_file(const fs::path& path, std::string_view content, bool overwrite) {
  const fs::path target = writable_target(path, overwrite);
  std::error_code error;
  fs::path temporary = target;
  temporary += fmt::format(".tmp{}", ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.flush();
    if (!out) {
      fs::remove(temporary, error);
      throw Error("cannot be written", path.string(),
                  "check that the directory exists and is writable");
    }
  }
  fs::rename(temporary, target, error);
  if (error) {
    fs::remove(temporary, error);
    throw Error("cannot be written", path.string(), "check that the directory is writable");
  }
}

}  // namespace meshwright
