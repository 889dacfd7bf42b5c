#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace meshwright {

using Json = nlohmann::ordered_json;

/// Parses hostile JSON text: at most 64 MiB and 200 levels deep. Throws Error whose `where` is
/// `source:line:column`.
Json parse_json(std::string_view text, std::string_view source);

/// read_file + parse_json.
Json read_json(const std::filesystem::path& path);

}  // namespace meshwright
