#pragma once

#include <string_view>
#include <vector>

namespace meshwright {

/// A data file of the project that was compiled into the program (cmake/embed.cmake).
struct EmbeddedFile {
  std::string_view name;  ///< Path below data/: "devices.json"; others: "spaces/fsdp.yaml".
  std::string_view content;
};

/// Every embedded file, sorted by name.
const std::vector<EmbeddedFile>& embedded_files();

/// The content of one file. Asking for a file that is not there is a bug: InternalError.
std::string_view embedded_file(std::string_view name);

}  // namespace meshwright
