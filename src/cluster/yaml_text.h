#pragma once

#include <cstdint>
#include <string_view>

namespace meshwright {

constexpr std::uint64_t kMaxYamlBytes = 2ull << 20;

/// Refuses text that no hand-written YAML looks like, before the YAML library sees it: more than
/// kMaxYamlBytes, bytes that are no text, nesting or indentation beyond any use. Throws Error whose
/// `where` is `source:line:column`.
void check_yaml_text(std::string_view text, std::string_view source);

}  // namespace meshwright
