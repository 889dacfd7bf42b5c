#pragma once

#include <string>
#include <string_view>

#include "base/units.h"

namespace meshwright {

/// A number and a unit, as users write them. Throws Error (without a place: add it with within())
/// when there is no unit, an unknown or ambiguous one, or the value is negative, infinite or NaN.
/// "80 GiB", "1.5TB", "512 B".
Bytes parse_bytes(std::string_view text);
/// "450 GB/s", "400 Gb/s" (bits), "100Gbps". A lower-case "gb/s" could be either and is refused.
BytesPerSecond parse_bandwidth(std::string_view text);
/// "5 us", "1.5ms".
Seconds parse_seconds(std::string_view text);
/// "989 TFLOP/s", "2 PFLOPS".
FlopsPerSecond parse_flop_rate(std::string_view text);

/// The shortest text in a readable unit from which the parser above gives exactly the same value.
std::string exact_text(Bytes value);
std::string exact_text(BytesPerSecond value);
std::string exact_text(Seconds value);
std::string exact_text(FlopsPerSecond value);

}  // namespace meshwright
