#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace meshwright {

/// The oracle of every parser: an input is answered with a value or with an Error.
/// `parse_and_check` parses, and states with MW_CHECK what holds of a value (printing it and
/// parsing that gives it back). Any other exception, and any crash, is a finding.
template <class ParseAndCheck>
int answers(const std::uint8_t* data, std::size_t size, ParseAndCheck parse_and_check) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    parse_and_check(text);
  } catch (const Error&) {
  }
  return 0;
}

/// What every fuzz_<name>.cpp defines.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

}  // namespace meshwright
