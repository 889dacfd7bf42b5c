#pragma once

#include <string_view>

namespace meshwright {

/// Throws Error when `pattern` is no pattern of module paths: empty, longer than 256 characters, an
/// empty component, `**` inside a component, or a range that is none.
void check_path_pattern(std::string_view pattern);

/// Whether a checked pattern stands for a module path. Between dots, `*` is any text inside one
/// component and `[0-15]` a number in that range; `**` alone is any number of components, none
/// included.
bool path_matches(std::string_view pattern, std::string_view path);

}  // namespace meshwright
