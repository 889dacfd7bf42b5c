#include "import/hf/config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace meshwright::hf {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::size_t kMaxListEntries = 100'000;

// The value as the file has it, cut so that a message stays one line.
std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string joined(Keys keys) {
  std::string text;
  for (std::string_view key : keys) text += fmt::format("{}{}", text.empty() ? "" : ", ", key);
  return text;
}

// A key as a JSON pointer token (RFC 6901).
std::string pointer_token(std::string_view key) {
  std::string token = "/";
  for (char c : key) {
    if (c == '~')
      token += "~0";
    else if (c == '/')
      token += "~1";
    else
      token += c;
  }
  return token;
}

}  // namespace

Config::Config(const Json& json, std::string source, std::string pointer)
    : json_(&json), source_(std::move(source)), pointer_(std::move(pointer)) {
  if (!json.is_object()) {
    throw Error(fmt::format("a model configuration is a JSON object, but this is {}", shown(json)),
                pointer_.empty() ? source_ : fmt::format("{}: {}", source_, pointer_));
  }
}

const Json* Config::find(std::string_view key) const {
  const auto it = json_->find(key);
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

bool Config::has(std::string_view key) const { return find(key) != nullptr; }

bool Config::is_null(std::string_view key) const {
  const auto it = json_->find(key);
  return it != json_->end() && it->is_null();
}

bool Config::has_any(Keys keys) const {
  for (std::string_view key : keys) {
    if (has(key)) return true;
  }
  return false;
}

std::string_view Config::present_key(Keys keys) const {
  for (std::string_view key : keys) {
    if (has(key)) return key;
  }
  return *keys.begin();
}

std::string Config::where(std::string_view key) const {
  return fmt::format("{}: {}{}", source_, pointer_, pointer_token(key));
}

void Config::fail(std::string_view key, std::string message, std::string hint) const {
  throw Error(std::move(message), where(key), std::move(hint));
}

std::int64_t Config::integer(std::string_view key, const Json& value, std::int64_t least) const {
  std::int64_t result = -1;
  bool legal = value.is_number_integer();
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    legal = number <= static_cast<std::uint64_t>(kMaxSize);
    if (legal) result = static_cast<std::int64_t>(number);
  } else if (legal) {
    result = value.get<std::int64_t>();
  }
  if (!legal || result < least || result > kMaxSize) {
    fail(key, fmt::format("{} must be a whole number from {} to {}, but is {}", key, least,
                          kMaxSize, shown(value)));
  }
  return result;
}

std::int64_t Config::size(Keys keys) const {
  const std::string_view key = present_key(keys);
  const Json* value = find(key);
  if (value == nullptr) {
    fail(key, fmt::format("{} is missing", key),
         keys.size() > 1 ? fmt::format("any of these counts: {}", joined(keys)) : "");
  }
  return integer(key, *value, 1);
}

std::int64_t Config::size_or(Keys keys, std::int64_t fallback) const {
  return has_any(keys) ? size(keys) : fallback;
}

std::int64_t Config::core_size_or(Keys keys, std::int64_t fallback) const {
  return has("model_type") ? size_or(keys, fallback) : size(keys);
}

std::int64_t Config::count_or(Keys keys, std::int64_t fallback) const {
  const std::string_view key = present_key(keys);
  const Json* value = find(key);
  return value == nullptr ? fallback : integer(key, *value, 0);
}

double Config::number_or(Keys keys, double fallback) const {
  const std::string_view key = present_key(keys);
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    fail(key, fmt::format("{} must be a number, but is {}", key, shown(*value)));
  }
  return value->get<double>();
}

bool Config::flag_or(Keys keys, bool fallback) const {
  const std::string_view key = present_key(keys);
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    fail(key, fmt::format("{} must be true or false, but is {}", key, shown(*value)));
  }
  return value->get<bool>();
}

std::string Config::text_or(Keys keys, std::string_view fallback) const {
  const std::string_view key = present_key(keys);
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    fail(key, fmt::format("{} must be a string, but is {}", key, shown(*value)));
  }
  return value->get<std::string>();
}

std::vector<std::int64_t> Config::sizes_or_empty(std::string_view key) const {
  std::vector<std::int64_t> result;
  const Json* value = find(key);
  if (value == nullptr) return result;
  if (!value->is_array() || value->size() > kMaxListEntries) {
    fail(key, fmt::format("{} must be a list of at most {} whole numbers, but is {}", key,
                          kMaxListEntries, shown(*value)));
  }
  for (const Json& entry : *value) {
    result.push_back(entry.is_boolean() ? static_cast<std::int64_t>(entry.get<bool>())
                                        : integer(key, entry, -1));
  }
  return result;
}

std::vector<std::string> Config::texts_or_empty(std::string_view key) const {
  std::vector<std::string> result;
  const Json* value = find(key);
  if (value == nullptr) return result;
  if (!value->is_array() || value->size() > kMaxListEntries) {
    fail(key, fmt::format("{} must be a list of at most {} strings, but is {}", key,
                          kMaxListEntries, shown(*value)));
  }
  for (const Json& entry : *value) {
    if (!entry.is_string()) {
      fail(key, fmt::format("{} must hold strings, but has {}", key, shown(entry)));
    }
    result.push_back(entry.get<std::string>());
  }
  return result;
}

bool Config::is_list(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && value->is_array();
}

bool Config::has_nested(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && value->is_object();
}

Config Config::nested(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) fail(key, fmt::format("{} is missing", key));
  return Config(*value, source_, pointer_ + pointer_token(key));
}

}  // namespace meshwright::hf
