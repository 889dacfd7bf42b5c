#include "cluster/yaml_text.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr int kMaxFlowDepth = 64;
constexpr std::size_t kMaxIndent = 200;

}  // namespace

void check_yaml_text(std::string_view text, std::string_view source) {
  if (text.size() > kMaxYamlBytes) {
    throw Error(fmt::format("YAML text of more than {} MiB", kMaxYamlBytes >> 20),
                std::string(source));
  }
  std::size_t line = 1, line_start = 0;
  const auto fail = [&](std::size_t at, std::string message) {
    throw Error(std::move(message), fmt::format("{}:{}:{}", source, line, at - line_start + 1));
  };
  // Block nesting needs one more column (or "-", "?", ":") per level, flow nesting one more
  // bracket. Brackets in quotes and comments count too, which costs nothing but unlikely files.
  int depth = 0;
  bool indenting = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      ++line;
      line_start = i + 1;
      indenting = true;
      continue;
    }
    if (byte < 0x20 && c != '\t' && c != '\r') {
      fail(i, fmt::format("byte 0x{:02x}: this is not a text file", byte));
    }
    if (c == '[' || c == '{') {
      if (++depth > kMaxFlowDepth) {
        fail(i, fmt::format("nested more than {} levels deep", kMaxFlowDepth));
      }
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
    if (indenting && i - line_start > kMaxIndent) {
      fail(i, fmt::format("indented by more than {} columns", kMaxIndent));
    }
    indenting = indenting && (c == ' ' || c == '\t' || c == '-' || c == '?' || c == ':');
  }
}

}  // namespace meshwright
