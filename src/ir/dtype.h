#pragma once

#include <string_view>

#include "base/units.h"

namespace meshwright {

enum class DType { kF64, kF32, kBf16, kF16, kF8, kI64, kI32, kU8, kBool };

/// "bf16", "f32", "i64", … (the spelling of the graph text form).
std::string_view dtype_name(DType dtype);
/// The inverse; throws Error for an unknown name.
DType parse_dtype(std::string_view name);
/// Bytes per element.
int dtype_bytes(DType dtype);
bool is_floating(DType dtype);

}  // namespace meshwright
