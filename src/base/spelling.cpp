#include "base/spelling.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright {
namespace {

constexpr std::size_t kMaxCompared = 64;
constexpr std::size_t kMaxQuoted = 60;

std::string letters_and_digits(std::string_view text) {
  std::string kept;
  for (const char c : text.substr(0, kMaxCompared)) {
    if (c >= 'A' && c <= 'Z') kept += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) kept += c;
  }
  return kept;
}

// Edit distance in which a character that only `name` has is cheap: users leave things out more
// often than they make things up.
int distance(const std::string& word, const std::string& name) {
  constexpr int kMissing = 2, kWrong = 5;
  std::vector<int> row(name.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<int>(j) * kMissing;
  for (std::size_t i = 1; i <= word.size(); ++i) {
    int diagonal = row[0];
    row[0] += kWrong;
    for (std::size_t j = 1; j <= name.size(); ++j) {
      const int replaced = diagonal + (word[i - 1] == name[j - 1] ? 0 : kWrong);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + kWrong, row[j - 1] + kMissing});
    }
  }
  // What follows a name's matching beginning costs one, however long it is.
  int best = row.back();
  for (std::size_t j = 0; j + 1 < row.size(); ++j) best = std::min(best, row[j] + 1);
  return best;
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& names,
                                       std::size_t count) {
  const std::string wanted = letters_and_digits(word);
  std::vector<std::pair<int, std::string>> ranked;
  for (const std::string& name : names) {
    ranked.emplace_back(distance(wanted, letters_and_digits(name)), name);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> nearest;
  for (const auto& [rank, name] : ranked) {
    if (nearest.size() == count) break;
    nearest.push_back(name);
  }
  return nearest;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxQuoted)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += fmt::format("\\{}", c);
    } else if (byte < 0x20 || byte > 0x7e) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kMaxQuoted) out += "...";
  return out + '"';
}

}  // namespace meshwright
