#include "import/onnx/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace meshwright::onnx {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    throw Error(errno == ENOENT ? "no such file" : std::generic_category().message(errno),
                path.string());
  }
  struct ::stat info = {};
  const bool regular = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular || info.st_size == 0) {
    ::close(file);
    throw Error(regular ? "the file is empty" : "is no regular file", path.string());
  }
  size_ = static_cast<std::size_t>(info.st_size);
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  ::close(file);
  if (data_ == MAP_FAILED) throw Error(std::generic_category().message(error), path.string());
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

}  // namespace meshwright::onnx
