#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright {

/// Splits a command line into words as a POSIX shell does for plain words: blanks part words,
/// single and double quotes and backslashes protect, a backslash before a line end joins lines, `#`
/// at the start of a word begins a comment. The command ends at an unquoted word that is a pipe,
/// `&`, `;`, `&&` or a redirection. Nothing is expanded, and inside a word `| ( ) *` are ordinary
/// characters, so that a pipeline layout need not be quoted. Throws Error on an open quote or more
/// than 1 MiB of text.
std::vector<std::string> split_shell_words(std::string_view line);

/// `word` in a form that a shell reads back unchanged: quoted only when it must be.
std::string quote_shell_word(std::string_view word);

/// The quoted words, parted by single blanks.
std::string join_shell_words(std::span<const std::string> words);

}  // namespace meshwright
