#include <fmt/format.h>

#include "import/onnx/proto.h"

namespace meshwright::onnx {
namespace {

struct TypeRow {
  std::string_view name;
  int bits;
  bool floating;
};

// By number.
constexpr TypeRow kTypes[] = {
    {"unknown", 0, false},       {"float32", 32, true},   {"uint8", 8, false},
    {"int8", 8, false},          {"uint16", 16, false},   {"int16", 16, false},
    {"int32", 32, false},        {"int64", 64, false},    {"string", 0, false},
    {"bool", 8, false},          {"float16", 16, true},   {"float64", 64, true},
    {"uint32", 32, false},       {"uint64", 64, false},   {"complex64", 64, false},
    {"complex128", 128, false},  {"bfloat16", 16, true},  {"float8e4m3fn", 8, true},
    {"float8e4m3fnuz", 8, true}, {"float8e5m2", 8, true}, {"float8e5m2fnuz", 8, true},
    {"uint4", 4, false},         {"int4", 4, false},      {"float4e2m1", 4, true},
    {"float8e8m0", 8, true},     {"uint2", 2, false},     {"int2", 2, false},
};

const TypeRow* row(int type) {
  if (type < 0 || type >= static_cast<int>(std::size(kTypes))) return nullptr;
  return &kTypes[type];
}

}  // namespace

std::string element_type_name(int type) {
  const TypeRow* r = row(type);
  return r != nullptr ? std::string(r->name) : fmt::format("type {}", type);
}

bool is_floating_type(int type) {
  const TypeRow* r = row(type);
  return r != nullptr && r->floating;
}

int element_bits(int type) {
  const TypeRow* r = row(type);
  return r != nullptr ? r->bits : 0;
}

const Attribute* Node::attribute(std::string_view wanted) const {
  for (const Attribute& a : attributes) {
    if (a.name == wanted) return &a;
  }
  return nullptr;
}

}  // namespace meshwright::onnx
