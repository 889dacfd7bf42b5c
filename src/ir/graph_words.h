#pragma once

#include <array>
#include <string_view>

namespace meshwright {

// What the printer and the parser of the graph text form share (docs/graph_format.md).

inline constexpr int kGraphTextVersion = 1;

/// Keywords of value lines, by ValueKind.
inline constexpr std::array<std::string_view, 4> kValueKeywords = {"input", "param", "buffer",
                                                                   "value"};

/// Characters of names that need no quotes.
inline bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == ':' || c == '/' || c == '-' || c == '@';
}

}  // namespace meshwright
