#include "ir/dtype.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace meshwright {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bytes;
  bool floating;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::kF64, "f64", 8, true},    DTypeRow{DType::kF32, "f32", 4, true},
    DTypeRow{DType::kBf16, "bf16", 2, true},  DTypeRow{DType::kF16, "f16", 2, true},
    DTypeRow{DType::kF8, "f8", 1, true},      DTypeRow{DType::kI64, "i64", 8, false},
    DTypeRow{DType::kI32, "i32", 4, false},   DTypeRow{DType::kU8, "u8", 1, false},
    DTypeRow{DType::kBool, "bool", 1, false},
};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) { return row(dtype).name; }
int dtype_bytes(DType dtype) { return row(dtype).bytes; }
bool is_floating(DType dtype) { return row(dtype).floating; }

DType parse_dtype(std::string_view name) {
  for (const DTypeRow& r : kDTypes) {
    if (r.name == name) return r.dtype;
  }
  throw Error(fmt::format("unknown dtype '{}'", name), {},
              "legal: f64 f32 bf16 f16 f8 i64 i32 u8 bool");
}

}  // namespace meshwright
