#include "base/error.h"

#include <fmt/format.h>

namespace meshwright {
namespace {

std::string full_text(const std::string& message, const std::string& where,
                      const std::string& hint) {
  std::string text = where.empty() ? message : fmt::format("{}: {}", where, message);
  if (!hint.empty()) text += fmt::format(" ({})", hint);
  return text;
}

}  // namespace

Error::Error(std::string message, std::string where, std::string hint)
    : std::runtime_error(full_text(message, where, hint)),
      message_(std::move(message)),
      where_(std::move(where)),
      hint_(std::move(hint)) {}

Error Error::within(std::string_view place) const {
  return Error(message_, where_.empty() ? std::string(place) : fmt::format("{}: {}", place, where_),
               hint_);
}

void fail_check(const char* file, int line, std::string_view message) {
  throw InternalError(
      fmt::format("{}:{}: {} (a bug in meshwright, please report)", file, line, message));
}

}  // namespace meshwright
