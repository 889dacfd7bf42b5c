#include "ir/attrs.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {
namespace {

template <class T>
T get(const Attrs& attrs, std::string_view name, T fallback, std::string_view type_name) {
  const auto it = attrs.find(name);
  if (it == attrs.end()) return fallback;
  if (const T* value = std::get_if<T>(&it->second)) return *value;
  throw Error(fmt::format("attribute '{}' must be {}", name, type_name));
}

}  // namespace

bool attr_bool(const Attrs& attrs, std::string_view name, bool fallback) {
  return get<bool>(attrs, name, fallback, "true or false");
}

std::int64_t attr_int(const Attrs& attrs, std::string_view name, std::int64_t fallback) {
  return get<std::int64_t>(attrs, name, fallback, "an integer");
}

double attr_float(const Attrs& attrs, std::string_view name, double fallback) {
  const auto it = attrs.find(name);
  if (it != attrs.end()) {
    if (const auto* integer = std::get_if<std::int64_t>(&it->second)) {
      return static_cast<double>(*integer);
    }
  }
  return get<double>(attrs, name, fallback, "a number");
}

std::string attr_string(const Attrs& attrs, std::string_view name, std::string_view fallback) {
  return get<std::string>(attrs, name, std::string(fallback), "a string");
}

std::vector<std::int64_t> attr_ints(const Attrs& attrs, std::string_view name) {
  return get<std::vector<std::int64_t>>(attrs, name, {}, "a list of integers");
}

}  // namespace meshwright
