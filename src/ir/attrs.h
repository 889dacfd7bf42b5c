#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace meshwright {

using Attr = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>>;

/// The non-tensor arguments of an operator, ordered by name.
using Attrs = std::map<std::string, Attr, std::less<>>;

/// Typed access with a default for an absent attribute; throws Error naming the attribute on a
/// wrong type.
bool attr_bool(const Attrs& attrs, std::string_view name, bool fallback);
std::int64_t attr_int(const Attrs& attrs, std::string_view name, std::int64_t fallback);
double attr_float(const Attrs& attrs, std::string_view name, double fallback);
std::string attr_string(const Attrs& attrs, std::string_view name, std::string_view fallback);
std::vector<std::int64_t> attr_ints(const Attrs& attrs, std::string_view name);

}  // namespace meshwright
