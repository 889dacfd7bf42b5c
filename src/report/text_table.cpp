#include "report/text_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright {

std::string text_table(const std::vector<std::string>& headings,
                       const std::vector<std::vector<std::string>>& rows, int indent,
                       const std::vector<bool>& left) {
  std::vector<std::size_t> width;
  for (const std::string& h : headings) width.push_back(h.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size() && i < width.size(); ++i) {
      width[i] = std::max(width[i], row[i].size());
    }
  }
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < cells.size() && i < width.size(); ++i) {
      if (i > 0) out += "  ";
      if (i < left.size() && left[i])
        out += fmt::format("{:<{}}", cells[i], width[i]);
      else
        out += fmt::format("{:>{}}", cells[i], width[i]);
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    text += out + "\n";
  };
  line(headings);
  for (const auto& row : rows) line(row);
  return text;
}

}  // namespace meshwright
