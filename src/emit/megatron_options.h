#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "emit/megatron_args.h"

namespace meshwright {

/// One command-line option: its flag, the field that holds its value, and which values are legal.
struct MegatronOption {
  using Field = std::variant<
      bool MegatronArgs::*, std::int64_t MegatronArgs::*,
      std::optional<std::int64_t> MegatronArgs::*, std::optional<double> MegatronArgs::*,
      std::optional<std::string> MegatronArgs::*, std::vector<std::string> MegatronArgs::*,
      std::vector<std::int64_t> MegatronArgs::*>;

  std::string_view flag;
  Field field;
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::string_view choices = {};  ///< Parted by blanks; empty allows any text.
};

/// Every option that MegatronArgs has a field for, in the order of the fields.
std::span<const MegatronOption> megatron_options();

/// The option named `flag`, or null.
const MegatronOption* find_megatron_option(std::string_view flag);

/// A known flag that `flag` is probably a misspelling of; empty when none is close.
std::string_view similar_megatron_flag(std::string_view flag);

}  // namespace meshwright
