#include "base/parse_units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <span>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

struct Unit {
  std::string_view name;
  double factor;  ///< value = number * factor / divisor, so that "5 us" is exactly 5e-6.
  double divisor = 1;
  bool printed = false;  ///< exact_text may choose it; large units come first in each table.
};

constexpr Unit kBytes[] = {{"TiB", 0x1p40, 1, true},
                           {"GiB", 0x1p30, 1, true},
                           {"MiB", 0x1p20, 1, true},
                           {"KiB", 0x1p10, 1, true},
                           {"TB", 1e12},
                           {"GB", 1e9},
                           {"MB", 1e6},
                           {"kB", 1e3},
                           {"KB", 1e3},
                           {"B", 1, 1, true}};
constexpr Unit kBandwidth[] = {{"TB/s", 1e12},     {"GB/s", 1e9, 1, true}, {"MB/s", 1e6},
                               {"kB/s", 1e3},      {"KB/s", 1e3},          {"TBps", 1e12},
                               {"GBps", 1e9},      {"MBps", 1e6},          {"TiB/s", 0x1p40},
                               {"GiB/s", 0x1p30},  {"MiB/s", 0x1p20},      {"Tb/s", 1e12, 8},
                               {"Gb/s", 1e9, 8},   {"Mb/s", 1e6, 8},       {"Tbps", 1e12, 8},
                               {"Gbps", 1e9, 8},   {"Mbps", 1e6, 8},       {"Tbit/s", 1e12, 8},
                               {"Gbit/s", 1e9, 8}, {"Mbit/s", 1e6, 8},     {"B/s", 1, 1, true}};
constexpr Unit kSeconds[] = {
    {"us", 1, 1e6, true}, {"ms", 1, 1e3}, {"ns", 1, 1e9}, {"s", 1, 1, true}};
constexpr Unit kFlopRate[] = {
    {"TFLOP/s", 1e12, 1, true}, {"PFLOP/s", 1e15}, {"GFLOP/s", 1e9},      {"MFLOP/s", 1e6},
    {"TFLOPS", 1e12},           {"PFLOPS", 1e15},  {"GFLOPS", 1e9},       {"TFLOPs", 1e12},
    {"PFLOPs", 1e15},           {"GFLOPs", 1e9},   {"FLOP/s", 1, 1, true}};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

double parse(std::string_view text, std::span<const Unit> units, std::string_view what,
             std::string_view example) {
  const std::string hint = fmt::format("write a number and a unit, e.g. {}", example);
  const std::string_view rest = trimmed(text);
  double number = 0;
  const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (status != std::errc{})
    throw Error(fmt::format("{} is not a {}", in_quotes(text), what), "", hint);
  const std::string_view unit = trimmed(rest.substr(static_cast<std::size_t>(end - rest.data())));
  if (unit.empty()) throw Error(fmt::format("{} has no unit", in_quotes(text)), "", hint);
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    const double value = number * known.factor / known.divisor;
    if (!std::isfinite(value) || std::signbit(value)) {
      throw Error(
          fmt::format("{} is not a {}: it must be finite and not negative", in_quotes(text), what),
          "", hint);
    }
    return value;
  }
  throw Error(fmt::format("unknown unit {} in {}", in_quotes(unit), in_quotes(text)), "", hint);
}

std::string exact(double value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (!unit.printed) continue;
    if (unit.factor == 1 && unit.divisor == 1) return fmt::format("{} {}", value, unit.name);
    // Take the first unit in which the number is at least one, short, and nothing is lost.
    const std::string text = fmt::format("{:.9g}", value * unit.divisor / unit.factor);
    double number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    if (number >= 1 && number * unit.factor / unit.divisor == value) {
      return fmt::format("{} {}", text, unit.name);
    }
  }
  return {};
}

}  // namespace

Bytes parse_bytes(std::string_view text) { return Bytes(parse(text, kBytes, "size", "80 GiB")); }
BytesPerSecond parse_bandwidth(std::string_view text) {
  return BytesPerSecond(
      parse(text, kBandwidth, "bandwidth", "450 GB/s (bytes) or 400 Gb/s (bits)"));
}
Seconds parse_seconds(std::string_view text) {
  return Seconds(parse(text, kSeconds, "time", "5 us"));
}
FlopsPerSecond parse_flop_rate(std::string_view text) {
  return FlopsPerSecond(parse(text, kFlopRate, "rate", "989 TFLOP/s"));
}

std::string exact_text(Bytes value) { return exact(value.value, kBytes); }
std::string exact_text(BytesPerSecond value) { return exact(value.value, kBandwidth); }
std::string exact_text(Seconds value) { return exact(value.value, kSeconds); }
std::string exact_text(FlopsPerSecond value) { return exact(value.value, kFlopRate); }

}  // namespace meshwright
