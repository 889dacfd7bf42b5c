#include "base/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace meshwright {

std::string format_bytes(Bytes bytes) {
  constexpr std::array kPrefixes = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = bytes.value;
  std::size_t prefix = 0;
  while (std::abs(value) >= 1024 && prefix + 1 < kPrefixes.size()) value /= 1024, ++prefix;
  return prefix == 0 ? fmt::format("{:.0f} B", value)
                     : fmt::format("{:.1f} {}", value, kPrefixes[prefix]);
}

std::string format_seconds(Seconds seconds) {
  const double value = std::abs(seconds.value);
  if (value >= 1 || value == 0) return fmt::format("{:.3f} s", seconds.value);
  if (value >= 1e-3) return fmt::format("{:.1f} ms", seconds.value * 1e3);
  return fmt::format("{:.1f} us", seconds.value * 1e6);
}

std::string format_count(double count) {
  constexpr std::array kPrefixes = {"", " K", " M", " B", " T", " P"};
  std::size_t prefix = 0;
  while (std::abs(count) >= 1000 && prefix + 1 < kPrefixes.size()) count /= 1000, ++prefix;
  return fmt::format("{:.3g}{}", count, kPrefixes[prefix]);
}

std::string format_integer(long long value) {
  std::string text = std::to_string(value);
  const std::size_t first_digit = value < 0 ? 1 : 0;
  for (std::size_t i = text.size(); i > first_digit + 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

}  // namespace meshwright
