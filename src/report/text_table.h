#pragma once

#include <string>
#include <vector>

namespace meshwright {

/// Columns aligned under their headings: left where `left` says so (default: the first only), else
/// right. Two blanks between columns, `indent` before the first.
std::string text_table(const std::vector<std::string>& headings,
                       const std::vector<std::vector<std::string>>& rows, int indent = 2,
                       const std::vector<bool>& left = {true});

}  // namespace meshwright
