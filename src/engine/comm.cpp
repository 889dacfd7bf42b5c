#include "engine/comm.h"

#include <fmt/format.h>

#include <cctype>

namespace meshwright {

std::string failure_text(int rank, const std::string& reason) {
  const bool names_rank = reason.starts_with("rank ") && reason.size() > 5 &&
                          std::isdigit(static_cast<unsigned char>(reason[5])) != 0;
  return names_rank ? reason : fmt::format("rank {} failed: {}", rank, reason);
}

}  // namespace meshwright
