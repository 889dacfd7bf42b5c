#include "base/embedded.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {

std::string_view embedded_file(std::string_view name) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == name) return file.content;
  }
  MW_CHECK(false, fmt::format("no embedded file \"{}\"", name));
  return {};
}

}  // namespace meshwright
