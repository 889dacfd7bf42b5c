#pragma once

#include <string>

#include "base/units.h"

namespace meshwright {

/// "12.3 GiB", "4.0 MiB": bytes with a binary prefix, one decimal.
std::string format_bytes(Bytes bytes);
/// "1.234 s", "56.7 ms", "8.9 us".
std::string format_seconds(Seconds seconds);
/// "6.74 B", "125 M": a count with a decimal prefix.
std::string format_count(double count);
/// "6,738,415,616".
std::string format_integer(long long value);

}  // namespace meshwright
