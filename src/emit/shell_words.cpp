#include "emit/shell_words.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxLine = std::size_t{1} << 20;
constexpr std::string_view kPlain =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Whether an unquoted word starts something behind the command.
bool ends_command(std::string_view word) {
  for (const std::string_view end : {"|", "||", "|&", "&", "&&", ";", "2>&1"})
    if (word == end) return true;
  return word.starts_with(">") || word.starts_with("&>") || word.starts_with("2>");
}

/// Position of the first character at or after `at` that belongs to a word or a comment's end.
std::size_t skip_comment(std::string_view line, std::size_t at) {
  while (at < line.size() && line[at] != '\n') ++at;
  return at;
}

/// Appends the quoted text that starts behind the quote at `at`; returns the position behind its
/// end.
std::size_t read_quoted(std::string_view line, std::size_t at, std::string& word) {
  const char quote = line[at];
  for (std::size_t i = at + 1; i < line.size(); ++i) {
    if (line[i] == quote) return i + 1;
    const bool escapes = quote == '"' && line[i] == '\\' && i + 1 < line.size();
    if (escapes && line[i + 1] == '\n') {
      ++i;
    } else if (escapes && std::string_view("\\\"$`").find(line[i + 1]) != std::string_view::npos) {
      word += line[++i];
    } else {
      word += line[i];
    }
  }
  throw Error(fmt::format("the quote {} is never closed", quote),
              fmt::format("command line, character {}", at + 1));
}

}  // namespace

std::vector<std::string> split_shell_words(std::string_view line) {
  if (line.size() > kMaxLine)
    throw Error(fmt::format("the command line has {} characters, at most {} are allowed",
                            line.size(), kMaxLine),
                "command line");
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at < line.size()) {
    if (is_blank(line[at])) {
      ++at;
    } else if (line[at] == '#') {
      at = skip_comment(line, at);
    } else {
      std::string word;
      bool any = false;  // "" is a word, a lone line continuation is none
      bool quoted = false;
      while (at < line.size() && !is_blank(line[at])) {
        const char c = line[at];
        if (c == '\'' || c == '"') {
          at = read_quoted(line, at, word);
          any = quoted = true;
        } else if (c == '\\' && line.substr(at + 1, 1) == "\n") {
          at += 2;
        } else if (c == '\\' && line.substr(at + 1, 2) == "\r\n") {
          at += 3;
        } else {
          if (c == '\\' && at + 1 < line.size()) {
            ++at;
            quoted = true;
          }
          word += line[at++];
          any = true;
        }
      }
      if (!quoted && ends_command(word)) break;
      if (any) words.push_back(std::move(word));
    }
  }
  return words;
}

std::string quote_shell_word(std::string_view word) {
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted + "'";
}

std::string join_shell_words(std::span<const std::string> words) {
  std::string line;
  for (const auto& word : words) {
    if (!line.empty()) line += ' ';
    line += quote_shell_word(word);
  }
  return line;
}

}  // namespace meshwright
