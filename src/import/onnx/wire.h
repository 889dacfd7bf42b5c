#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::onnx {

/// One field of a message in the protocol buffers wire format.
struct WireField {
  std::uint32_t number = 0;
  enum class Kind { kVarint, kFixed64, kBytes, kFixed32 } kind = Kind::kVarint;
  std::uint64_t value = 0;  ///< Of kVarint, kFixed32 and kFixed64: its bits.
  std::string_view bytes;   ///< Of kBytes.
};

/// Walks the fields of one message where they lie: nothing is copied, and what a caller skips (the
/// weights of a model) is never read. Throws Error with the byte offset for a malformed message.
class WireReader {
 public:
  /// `message` is a part of `file`, whose start offsets are counted from.
  WireReader(std::string_view message, std::string_view file) : rest_(message), file_(file) {}

  /// False at the end of the message.
  bool next(WireField& field);

  bool done() const { return rest_.empty(); }
  std::uint64_t varint();
  std::uint64_t fixed(int bytes);

  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string_view rest_;
  std::string_view file_;
};

}  // namespace meshwright::onnx
