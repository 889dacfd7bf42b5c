#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"

namespace meshwright {
namespace {

constexpr std::uint64_t kMaxJsonBytes = 64ull << 20;
constexpr int kMaxJsonDepth = 200;

std::string place(std::string_view text, std::string_view source, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto newline = before.rfind('\n');
  const auto column =
      newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return fmt::format("{}:{}:{}", source, line, std::max<std::size_t>(column, 1));
}

// Depth is bounded before the library builds (or destroys) anything nested.
void check_depth(std::string_view text, std::string_view source) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) {
        throw Error(fmt::format("JSON is nested more than {} levels deep", kMaxJsonDepth),
                    place(text, source, i + 1));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

// The library quotes what it read, whatever bytes they are.
std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c >= 0x20 && c < 0x7f)
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source) {
  if (text.size() > kMaxJsonBytes)
    throw Error("JSON text is larger than 64 MiB", std::string(source));
  check_depth(text, source);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    std::string what = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...":
    // keep the end.
    const auto colon = what.find(": ");
    if (colon != std::string::npos) what = what.substr(colon + 2);
    throw Error("not valid JSON: " + printable(what), place(text, source, e.byte));
  } catch (const Json::exception& e) {
    throw Error("not valid JSON: " + printable(e.what()), std::string(source));
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMaxJsonBytes), path.string());
}

}  // namespace meshwright
