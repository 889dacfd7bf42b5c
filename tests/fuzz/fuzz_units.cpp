#include "base/parse_units.h"
#include "fuzz.h"

namespace meshwright {
namespace {

// Each text is one quantity at most, so every reader gets its turn.
template <class Quantity>
void round_trip(Quantity (*parse)(std::string_view), std::string_view text) {
  try {
    const Quantity value = parse(text);
    MW_CHECK(parse(exact_text(value)) == value, "quantity does not survive printing");
  } catch (const Error&) {
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    round_trip(parse_bytes, text);
    round_trip(parse_bandwidth, text);
    round_trip(parse_seconds, text);
    round_trip(parse_flop_rate, text);
  });
}

}  // namespace meshwright
