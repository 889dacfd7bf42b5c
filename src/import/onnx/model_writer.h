#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::onnx::testing {

// Writes ONNX models for tests: a message is its serialized bytes.

inline std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
inline std::string field(int number, std::string_view bytes) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(bytes.size()) +
         std::string(bytes);
}
inline std::string field(int number, std::int64_t value) {
  return varint(static_cast<std::uint64_t>(number) << 3) +
         varint(static_cast<std::uint64_t>(value));
}
inline std::string float_field(int number, float value) {
  std::string out = varint(static_cast<std::uint64_t>(number) << 3 | 5);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bits >> (8 * i) & 0xff);
  return out;
}

using Dims = std::vector<std::int64_t>;

/// A tensor without data: all that a weight needs.
inline std::string weight(std::string_view name, const Dims& dims, int type = 1) {
  std::string out;
  for (const std::int64_t d : dims) out += field(1, d);
  return out + field(2, type) + field(8, name);
}
inline std::string int_tensor(std::string_view name, const Dims& dims, const Dims& values) {
  std::string out = weight(name, dims, 7);
  for (const std::int64_t v : values) out += field(7, v);
  return out;
}
inline std::string float_tensor(std::string_view name, const Dims& dims,
                                const std::vector<float>& values) {
  std::string out = weight(name, dims);
  for (const float v : values) out += float_field(4, v);
  return out;
}

inline std::string attr(std::string_view name, std::int64_t value) {
  return field(1, name) + field(3, value) + field(20, 2);
}
inline std::string attr(std::string_view name, float value) {
  return field(1, name) + float_field(2, value) + field(20, 1);
}
inline std::string attr(std::string_view name, std::string_view value) {
  return field(1, name) + field(4, value) + field(20, 3);
}
inline std::string attr(std::string_view name, const Dims& values) {
  std::string out = field(1, name);
  for (const std::int64_t v : values) out += field(8, v);
  return out + field(20, 7);
}
inline std::string tensor_attr(std::string_view name, std::string_view tensor) {
  return field(1, name) + field(5, tensor) + field(20, 4);
}
inline std::string graph_attr(std::string_view name, std::string_view graph) {
  return field(1, name) + field(6, graph) + field(20, 5);
}

using Names = std::vector<std::string>;
inline std::string node(std::string_view op, const Names& inputs, const Names& outputs,
                        const std::vector<std::string>& attributes = {}, std::string_view name = {},
                        std::string_view domain = {}) {
  std::string out;
  for (const std::string& i : inputs) out += field(1, i);
  for (const std::string& o : outputs) out += field(2, o);
  out += field(3, name) + field(4, op);
  for (const std::string& a : attributes) out += field(5, a);
  return out + (domain.empty() ? "" : field(7, domain));
}

/// "batch" is a name, "8" a size, "" neither.
inline std::string value(std::string_view name, const Names& dims, int type = 1) {
  std::string shape;
  for (const std::string& d : dims) {
    const bool size = !d.empty() && d.find_first_not_of("-0123456789") == std::string::npos;
    shape += field(1, d.empty() ? "" : size ? field(1, std::stoll(d)) : field(2, d));
  }
  return field(1, name) + field(2, field(1, field(1, type) + field(2, shape)));
}

inline std::string function(std::string_view domain, std::string_view name, const Names& inputs,
                            const Names& outputs, const std::vector<std::string>& nodes) {
  std::string out = field(1, name) + field(10, domain);
  for (const std::string& i : inputs) out += field(4, i);
  for (const std::string& o : outputs) out += field(5, o);
  for (const std::string& n : nodes) out += field(7, n);
  return out;
}

struct GraphText {
  std::vector<std::string> nodes, initializers, inputs, outputs, values;

  std::string graph() const {
    std::string out;
    for (const std::string& n : nodes) out += field(1, n);
    out += field(2, "g");
    for (const std::string& i : initializers) out += field(5, i);
    for (const std::string& i : inputs) out += field(11, i);
    for (const std::string& o : outputs) out += field(12, o);
    for (const std::string& v : values) out += field(13, v);
    return out;
  }
  std::string model(std::int64_t opset = 17) const {
    return field(1, 8) + field(7, graph()) + field(8, field(1, "") + field(2, opset)) +
           field(8, field(1, "ai.onnx.ml") + field(2, 3));
  }
};

}  // namespace meshwright::onnx::testing
