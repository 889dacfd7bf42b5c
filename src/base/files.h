#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace meshwright {

/// Reads a whole regular file. Throws Error when it is missing, a directory, or larger than
/// `max_bytes` (checked before anything is read).
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Writes through a temporary file in the same directory and renames it, so that no half-written
/// file is ever seen. Throws Error when the file exists and `overwrite` is false.
void write_file(const std::filesystem::path& path, std::string_view content, bool overwrite);

/// Throws the Error that write_file would throw before it writes anything: for asking before long
/// work.
void check_writable(const std::filesystem::path& path, bool overwrite);

}  // namespace meshwright
