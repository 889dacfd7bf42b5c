#include "import/onnx/wire.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright::onnx {

void WireReader::fail(const std::string& what) const {
  throw Error(what, fmt::format("byte {}", rest_.data() - file_.data()),
              "the file is damaged or no ONNX model");
}

std::uint64_t WireReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) fail("the message ends inside a number");
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number has more than 10 bytes");
}

std::uint64_t WireReader::fixed(int bytes) {
  if (rest_.size() < static_cast<std::size_t>(bytes)) fail("the message ends inside a number");
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(rest_[static_cast<std::size_t>(i)]);
    value |= static_cast<std::uint64_t>(byte) << (8 * i);
  }
  rest_.remove_prefix(static_cast<std::size_t>(bytes));
  return value;
}

bool WireReader::next(WireField& field) {
  if (rest_.empty()) return false;
  const std::uint64_t tag = varint();
  if (tag > 0xffffffffu || tag >> 3 == 0) fail(fmt::format("illegal field tag {}", tag));
  field.number = static_cast<std::uint32_t>(tag >> 3);
  field.bytes = {};
  switch (tag & 7) {
    case 0:
      field.kind = WireField::Kind::kVarint;
      field.value = varint();
      return true;
    case 1:
      field.kind = WireField::Kind::kFixed64;
      field.value = fixed(8);
      return true;
    case 2: {
      field.kind = WireField::Kind::kBytes;
      const std::uint64_t size = varint();
      if (size > rest_.size()) {
        fail(fmt::format("field {} claims {} bytes, but {} are left", field.number, size,
                         rest_.size()));
      }
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
    case 5:
      field.kind = WireField::Kind::kFixed32;
      field.value = fixed(4);
      return true;
    default:
      fail(fmt::format("field {} has the unknown wire type {}", field.number, tag & 7));
  }
}

}  // namespace meshwright::onnx
