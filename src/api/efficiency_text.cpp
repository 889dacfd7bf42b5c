#include "api/efficiency_text.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

namespace meshwright {
namespace {

constexpr std::size_t kWidth = 100;

Json rounded(const Json& value) {
  if (value.is_object()) {
    Json result = Json::object();
    for (const auto& [key, entry] : value.items()) result[key] = rounded(entry);
    return result;
  }
  if (!value.is_number_float()) return value;
  const std::string digits = fmt::format("{:.3g}", value.get<double>());
  double number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (number == static_cast<double>(static_cast<long long>(number)))
    return static_cast<long long>(number);
  return number;
}

std::string one_line(const Json& value) {
  if (!value.is_object()) return value.dump();
  std::string text = "{";
  for (const auto& [key, entry] : value.items()) {
    text += fmt::format("{}{}: {}", text.size() > 1 ? ", " : "", Json(key).dump(), one_line(entry));
  }
  return text + "}";
}

std::string lines(const Json& value, std::size_t indent, std::size_t before) {
  std::string text = one_line(value);
  if (!value.is_object() || indent + before + text.size() <= kWidth) return text;
  text = "{";
  for (const auto& [key, entry] : value.items()) {
    const std::string name = Json(key).dump() + ": ";
    text += fmt::format("{}\n{:{}}{}{}", text.size() > 1 ? "," : "", "", indent + 2, name,
                        lines(entry, indent + 2, name.size() + 1));
  }
  return text + fmt::format("\n{:{}}}}", "", indent);
}

}  // namespace

std::string efficiency_text(const Json& efficiency) {
  return lines(rounded(efficiency), 0, 0) + "\n";
}

}  // namespace meshwright
