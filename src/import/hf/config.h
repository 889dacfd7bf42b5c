#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace meshwright::hf {

/// Alternative names of one value, most usual first: {"hidden_size", "n_embd"}, or a constant
/// array.
class Keys {
 public:
  Keys(std::initializer_list<std::string_view> keys) {
    // For arguments only: the list lives until the end of the call.
    begin_ = keys.begin();
    size_ = keys.size();
  }
  template <std::size_t N>
  Keys(const std::string_view (&keys)[N]) : begin_(keys), size_(N) {}

  const std::string_view* begin() const { return begin_; }
  const std::string_view* end() const { return begin_ + size_; }
  std::size_t size() const { return size_; }

 private:
  const std::string_view* begin_ = nullptr;
  std::size_t size_ = 0;
};

/// Typed, bounded access to a Hugging Face configuration. Every getter throws Error whose `where`
/// is `source: /pointer` when the value is missing (no fallback), of a wrong type, or out of range.
/// Of several keys the first one present (and not null) counts. The JSON must outlive the Config.
class Config {
 public:
  using Keys = hf::Keys;

  Config(const Json& json, std::string source, std::string pointer = "");

  bool has(std::string_view key) const;  ///< Present and not null.
  bool has_any(Keys keys) const;
  bool is_null(std::string_view key) const;  ///< Present, and null ("sliding_window": null).
  /// Positive integer up to 2^31.
  std::int64_t size(Keys keys) const;
  std::int64_t size_or(Keys keys, std::int64_t fallback) const;
  /// A size that decides what model this is (hidden size, layers, heads, vocabulary). The library's
  /// default counts only in a file that names its model_type; a reduced file must have the value.
  std::int64_t core_size_or(Keys keys, std::int64_t fallback) const;
  /// Integer from 0 to 2^31.
  std::int64_t count_or(Keys keys, std::int64_t fallback) const;
  double number_or(Keys keys, double fallback) const;
  bool flag_or(Keys keys, bool fallback) const;
  std::string text_or(Keys keys, std::string_view fallback) const;
  /// Lists with one entry per layer (at most 100,000 entries); empty when absent. Integers may be
  /// -1 or more; booleans read as 0 and 1.
  std::vector<std::int64_t> sizes_or_empty(std::string_view key) const;
  std::vector<std::string> texts_or_empty(std::string_view key) const;
  /// A nested configuration ("text_config"); an Error when it is missing or no object.
  Config nested(std::string_view key) const;
  bool is_list(std::string_view key) const;
  bool has_nested(std::string_view key) const;  ///< Present and an object.

  const Json& json() const { return *json_; }
  const std::string& source() const { return source_; }
  /// "config.json: /text_config/hidden_size".
  std::string where(std::string_view key) const;
  /// Error at a key of this configuration.
  [[noreturn]] void fail(std::string_view key, std::string message, std::string hint = {}) const;
  /// The first of `keys` that is present, or the first one.
  std::string_view present_key(Keys keys) const;

 private:
  const Json* find(std::string_view key) const;
  std::int64_t integer(std::string_view key, const Json& value, std::int64_t least) const;

  const Json* json_;
  std::string source_;
  std::string pointer_;
};

}  // namespace meshwright::hf
