#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "import/import.h"

namespace meshwright::hf {

/// Typed, bounded access to a Hugging Face configuration. Every getter throws Error whose `where`
/// is `source: /pointer` when the value is missing (no fallback), of a wrong type, or out of range.
class Config {
 public:
  Config(const Json& json, std::string source, std::string pointer = "");

  bool has(std::string_view key) const;  ///< Present and not null.
  /// Positive integer up to 2^31. The first key present counts ("n_embd", "hidden_size").
  std::int64_t size(std::initializer_list<std::string_view> keys) const;
  std::int64_t size_or(std::initializer_list<std::string_view> keys, std::int64_t fallback) const;
  /// Integer >= 0.
  std::int64_t count_or(std::initializer_list<std::string_view> keys, std::int64_t fallback) const;
  double number_or(std::initializer_list<std::string_view> keys, double fallback) const;
  bool flag_or(std::initializer_list<std::string_view> keys, bool fallback) const;
  std::string text_or(std::initializer_list<std::string_view> keys,
                      std::string_view fallback) const;
  /// Integers of a list (per-layer lists); empty when absent.
  std::vector<std::int64_t> sizes_or_empty(std::string_view key) const;
  std::vector<std::string> texts_or_empty(std::string_view key) const;
  /// A nested configuration ("text_config").
  Config nested(std::string_view key) const;

  const Json& json() const { return *json_; }
  const std::string& source() const { return source_; }
  /// Error at a key of this configuration.
  [[noreturn]] void fail(std::string_view key, std::string message, std::string hint = {}) const;

 private:
  const Json* json_;
  std::string source_;
  std::string pointer_;
};

/// One architecture family: which `model_type`s it reads and how. One file each in import/hf/, one
/// line each in import/hf/families.cpp.
struct Family {
  std::string_view name;
  std::string_view summary;
  std::span<const std::string_view> model_types;
  /// Class names in "architectures" that identify the family when model_type is missing.
  std::span<const std::string_view> architectures;
  Model (*build)(const Config& config, const ImportOptions& options);
};

std::span<const Family* const> families();

/// The batch x seq inputs shared by language models. Default sequence length: the configuration's
/// maximum positions, at most 4096.
struct TokenShape {
  std::int64_t batch;
  std::int64_t seq;
};
TokenShape token_shape(const ImportOptions& options, std::int64_t max_positions);

}  // namespace meshwright::hf
