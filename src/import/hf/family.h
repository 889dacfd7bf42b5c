#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "import/hf/config.h"
#include "import/import.h"

namespace meshwright::hf {

/// One architecture family: which configurations it reads and how. One file each in import/hf/,
/// one line each in import/hf/families.cpp.
struct Family {
  std::string_view name;
  std::string_view summary;
  std::span<const std::string_view> model_types;
  /// Stems of class names in "architectures" ("Llama" for LlamaForCausalLM and LlamaModel), used
  /// when model_type is missing or unknown.
  std::span<const std::string_view> architectures;
  Model (*build)(const Config& config, const ImportOptions& options);
};

/// All families; the first one that lists a model_type (an architecture) reads it.
std::span<const Family* const> families();

/// The family of a configuration by model_type, then architectures, then by which keys it has;
/// null when none is recognized.
const Family* find_family(const Config& config);

/// The architecture stem of a class name: "Llama" for LlamaForCausalLM.
std::string_view architecture_stem(std::string_view class_name);

/// The batch x seq inputs shared by language models.
struct TokenShape {
  std::int64_t batch;
  std::int64_t seq;
};
/// The options' batch and sequence length; default sequence length: the configuration's maximum
/// positions, at most 4096. Throws Error when a size is out of range.
TokenShape token_shape(const ImportOptions& options, std::int64_t max_positions);
/// The same where positions are a learned table of `max_positions` rows: a longer sequence is an
/// Error at the first of `keys` that is present.
TokenShape learned_token_shape(const Config& config, const ImportOptions& options,
                               std::int64_t max_positions, Keys keys);

/// Number of layers, at most 10,000 (so that no file makes a graph of more than about a million
/// operators).
std::int64_t layer_count(const Config& config, Keys keys, std::int64_t fallback);

}  // namespace meshwright::hf
