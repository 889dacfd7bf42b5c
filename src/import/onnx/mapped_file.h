#pragma once

#include <filesystem>
#include <string_view>

namespace meshwright::onnx {

/// A file as bytes that are read from disk only where they are looked at: the weights inside a
/// model are not. Throws Error when it is missing, no regular file, or empty.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace meshwright::onnx
