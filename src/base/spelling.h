#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshwright {

/// The `count` names most like `word`, best first, for "unknown X, did you mean ...". Case and
/// separators do not matter, and a name that merely continues the word ("h100" -> "h100-sxm-80")
/// counts as near.
std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& names,
                                       std::size_t count);

/// `text` in double quotes for a message: control and non-ASCII bytes escaped, cut after 60 bytes.
std::string in_quotes(std::string_view text);

}  // namespace meshwright
