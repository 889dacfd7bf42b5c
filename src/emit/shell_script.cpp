#include "emit/shell_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 20;
constexpr std::size_t kMaxExpanded = std::size_t{8} << 20;
constexpr int kMaxNesting = 8;

using Words = std::vector<std::string>;

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/// Words that may stand before a command and do not change what it is.
bool is_prefix(std::string_view word) {
  constexpr std::array<std::string_view, 10> kPrefixes = {
      "then", "else", "elif", "do", "while", "time", "!", "{", "function", "until"};
  return std::ranges::find(kPrefixes, word) != kPrefixes.end();
}

std::size_t name_length(std::string_view text) {
  if (text.empty() || !is_name_start(text[0])) return 0;
  std::size_t length = 1;
  while (length < text.size() && is_name(text[length])) ++length;
  return length;
}

class ScriptReader {
 public:
  ScriptReader(std::string_view text, const std::map<std::string, std::string>& env)
      : text_(text), given_(env) {
    for (const auto& [name, value] : env) variables_[name] = {value};
  }

  ShellCommand read() {
    std::optional<ShellCommand> other;
    while (at_ < text_.size()) {
      std::optional<ShellCommand> command = read_statement();
      if (!command) continue;
      const auto script = std::ranges::find_if(command->words, [](const std::string& word) {
        return word.ends_with(".py") && word.find("pretrain") != std::string::npos;
      });
      if (script != command->words.end()) return *std::move(command);
      if (!other) other = std::move(command);
    }
    if (other) return *std::move(other);
    throw Error("no command with a training script (*.py)", "script",
                "e.g. torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers ...");
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void count(std::size_t bytes) {
    expanded_ += bytes + 1;
    if (expanded_ > kMaxExpanded) throw Error("the script expands to more than 8 MiB", "script");
  }

  int line() const {
    return 1 + static_cast<int>(std::count(
                   text_.begin(),
                   text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), '\n'));
  }

  /// Skips blanks, joined lines and a comment.
  void skip_blanks() {
    while (at_ < text_.size()) {
      if (is_blank(peek())) {
        ++at_;
      } else if (peek() == '\\' && peek(1) == '\n') {
        at_ += 2;
      } else if (peek() == '\\' && peek(1) == '\r' && peek(2) == '\n') {
        at_ += 3;
      } else if (peek() == '#') {
        while (at_ < text_.size() && peek() != '\n') ++at_;
      } else {
        return;
      }
    }
  }

  /// Past the line end, and past the here-documents that the line announced.
  void end_line() {
    ++at_;
    for (const std::string& end : here_documents_) {
      while (at_ < text_.size()) {
        const std::size_t stop = std::min(text_.find('\n', at_), text_.size());
        std::string_view body = text_.substr(at_, stop - at_);
        at_ = std::min(stop + 1, text_.size());
        body.remove_prefix(std::min(body.find_first_not_of('\t'), body.size()));
        if (body == end) break;
      }
    }
    here_documents_.clear();
  }

  enum class Assigns { kNothing, kCommand, kShell, kExported };

  /// What an assignment behind these words does.
  static Assigns assigns_after(const Words& words) {
    if (words.empty()) return Assigns::kCommand;
    const bool options = std::all_of(words.begin() + 1, words.end(),
                                     [](const std::string& w) { return w.starts_with('-'); });
    if (!options) return Assigns::kNothing;
    if (words[0] == "export") return Assigns::kExported;
    const bool declares = words[0] == "declare" || words[0] == "local" || words[0] == "readonly";
    return declares ? Assigns::kShell : Assigns::kNothing;
  }

  std::optional<ShellCommand> read_statement() {
    const bool conditional = std::exchange(conditional_, false);
    Words words;
    std::map<std::string, std::string> prefix;
    while (true) {
      skip_blanks();
      const char c = peek();
      if (at_ >= text_.size()) break;
      if (c == '\n') {
        end_line();
        break;
      }
      if (c == ';' || c == '(' || c == ')') {
        ++at_;
        if (c == ';' || words.empty()) break;
        continue;
      }
      if (read_operator()) {
        if (ended_) break;
        continue;
      }
      while (words.size() == 1 && is_prefix(words[0])) words.clear();
      const Assigns assigns = assigns_after(words);
      if (assigns != Assigns::kNothing && read_assignment(assigns, prefix)) continue;
      read_word(words);
    }
    // `test && NAME=value`: who knows.
    if (words.empty() && conditional) return std::nullopt;
    return finish(std::move(words), std::move(prefix));
  }

  std::optional<ShellCommand> finish(Words words, std::map<std::string, std::string> prefix) {
    while (!words.empty() && is_prefix(words[0])) words.erase(words.begin());
    const std::string_view first = words.empty() ? std::string_view() : words[0];
    if (first == "if" || first == "case") ++skipped_;
    if ((first == "fi" || first == "esac") && skipped_ > 0) --skipped_;
    if (skipped_ > 0) return std::nullopt;
    if (words.empty()) {
      for (auto& [name, value] : prefix) set(name, {std::move(value)});
      return std::nullopt;
    }
    if (first == "export") {
      for (std::size_t i = 1; i < words.size(); ++i) exported_.push_back(words[i]);
      return std::nullopt;
    }
    const bool script =
        std::ranges::any_of(words, [](const std::string& w) { return w.ends_with(".py"); }) ||
        std::ranges::find(words, "-m") != words.end();
    if (!script) return std::nullopt;
    ShellCommand command;
    for (const std::string& name : exported_) {
      const auto found = variables_.find(name);
      if (found != variables_.end() && !found->second.empty()) command.env[name] = found->second[0];
    }
    for (auto& [name, value] : prefix) command.env[name] = std::move(value);
    command.words = std::move(words);
    return command;
  }

  /// Redirections, and what ends a command. Sets ended_ for the latter.
  bool read_operator() {
    ended_ = false;
    std::size_t digits = 0;
    while (std::isdigit(static_cast<unsigned char>(peek(digits))) != 0) ++digits;
    const char c = peek(digits);
    if (c == '<' || c == '>' || (digits == 0 && c == '&' && peek(1) == '>')) {
      at_ += digits;
      const bool here = peek() == '<' && peek(1) == '<' && peek(2) != '<';
      while (peek() == '<' || peek() == '>' || peek() == '&' || (here && peek() == '-')) ++at_;
      skip_blanks();
      Words target;
      if (at_ < text_.size() && peek() != '\n') read_word(target);
      if (here && !target.empty()) here_documents_.push_back(target[0]);
      return true;
    }
    if (digits > 0 || (c != '&' && c != '|')) return false;
    // Alone it is an operator; inside a word, as in a pipeline layout, an ordinary character.
    const std::size_t length = peek(1) == c ? 2 : 1;
    const char next = peek(length);
    if (next != '\0' && !is_blank(next) && next != '\n') return false;
    at_ += length;
    ended_ = true;
    conditional_ = length == 2;
    return true;
  }

  /// `NAME=value`, `NAME+=value`, `NAME=(words)`. Values that may stand in front of a command go to
  /// `prefix`.
  bool read_assignment(Assigns assigns, std::map<std::string, std::string>& prefix) {
    const std::size_t length = name_length(text_.substr(at_));
    if (length == 0) return false;
    const bool append = peek(length) == '+' && peek(length + 1) == '=';
    if (!append && peek(length) != '=') return false;
    const std::string name(text_.substr(at_, length));
    at_ += length + (append ? 2 : 1);
    Words values;
    if (peek() == '(') {
      ++at_;
      while (true) {
        skip_blanks();
        if (at_ >= text_.size() || peek() == ')') break;
        if (peek() == '\n') {
          ++at_;
          continue;
        }
        in_array_ = true;
        read_word(values);
        in_array_ = false;
      }
      ++at_;
      if (append) {
        const Words before = variables_[name];
        values.insert(values.begin(), before.begin(), before.end());
      }
      set(name, std::move(values));
      return true;
    }
    std::string value = append && !variables_[name].empty() ? variables_[name][0] : std::string();
    Words pieces;
    if (const char c = peek(); at_ < text_.size() && !is_blank(c) && c != '\n' && c != ';') {
      read_word(pieces);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) value += (i == 0 ? "" : " ") + pieces[i];
    if (assigns == Assigns::kCommand) {
      prefix[name] = std::move(value);
      return true;
    }
    set(name, {std::move(value)});
    if (assigns == Assigns::kExported) exported_.push_back(name);
    return true;
  }

  void set(const std::string& name, Words values) {
    if (skipped_ > 0 || given_.contains(name)) return;
    for (const std::string& value : values) count(value.size());
    variables_[name] = std::move(values);
  }

  /// One word as written, which may become none or several.
  void read_word(Words& words) {
    std::string word;
    bool any = false;
    const auto flush = [&] {
      if (any) {
        count(word.size());
        words.push_back(std::move(word));
      }
      word.clear();
      any = false;
    };
    const auto splice = [&](const Words& values, bool split) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i > 0) flush();
        if (!split) {
          word += values[i];
          any = true;
          continue;
        }
        for (const char c : values[i]) {
          if (is_blank(c) || c == '\n') {
            flush();
          } else {
            word += c;
            any = true;
          }
        }
      }
      if (word.size() > kMaxExpanded) count(word.size());
    };
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      const char c = peek();
      if (is_blank(c) || c == '\n' || c == ';') break;
      if (c == ')' && in_array_) break;
      if (c == '\'') {
        const std::size_t end = text_.find('\'', at_ + 1);
        if (end == std::string_view::npos) fail_open("'");
        word += text_.substr(at_ + 1, end - at_ - 1);
        any = true;
        at_ = end + 1;
      } else if (c == '"') {
        read_double_quotes(word, any, splice);
      } else if (c == '\\') {
        if (peek(1) == '\n') {
          at_ += 2;
        } else {
          if (at_ + 1 < text_.size()) ++at_;
          word += text_[at_++];
          any = true;
        }
      } else if (c == '$' || c == '`') {
        splice(expand(), true);
      } else {
        word += c;
        any = true;
        ++at_;
      }
    }
    if (at_ == begin) ++at_;  // Never stand still.
    flush();
  }

  template <class Splice>
  void read_double_quotes(std::string& word, bool& any, const Splice& splice) {
    const std::size_t open = at_++;
    bool empty_array = false;
    const bool was = any;
    while (true) {
      if (at_ >= text_.size()) {
        at_ = open;
        fail_open("\"");
      }
      const char c = peek();
      if (c == '"') break;
      if (c == '\\' && at_ + 1 < text_.size()) {
        const char next = peek(1);
        if (next != '\n') {
          if (next != '"' && next != '\\' && next != '$' && next != '`') word += c;
          word += next;
        }
        any = true;
        at_ += 2;
      } else if (c == '$' || c == '`') {
        const Words values = expand();
        empty_array = values.empty();
        splice(values, false);
      } else {
        word += c;
        any = true;
        ++at_;
      }
    }
    ++at_;
    // "" is a word; "${none[@]}" is not.
    if (!empty_array || was) any = true;
  }

  [[noreturn]] void fail_open(std::string_view quote) const {
    throw Error(fmt::format("open quote {}", quote), fmt::format("script:{}", line()));
  }

  /// What stands from `begin` to at_, unexpanded.
  Words literal(std::size_t begin) const { return {std::string(text_.substr(begin, at_ - begin))}; }

  /// The value of the expansion at at_: an array has several words, an unset one none.
  Words expand() {
    const std::size_t begin = at_;
    if (peek() == '`') {
      const std::size_t end = text_.find('`', at_ + 1);
      if (end == std::string_view::npos) fail_open("`");
      at_ = end + 1;
      return literal(begin);
    }
    ++at_;
    if (peek() == '(') {
      skip_group('(', ')');
      return literal(begin);
    }
    if (peek() == '{') {
      ++at_;
      const std::size_t body = at_;
      --at_;
      skip_group('{', '}');
      return expand_braces(text_.substr(body, at_ - 1 - body), literal(begin));
    }
    if (peek() == '@' || peek() == '*') {
      ++at_;
      return {};
    }
    const std::size_t length = name_length(text_.substr(at_));
    if (length == 0) {
      // $1, $?, $$ and a lone dollar.
      if (at_ < text_.size() && !is_blank(peek()) && peek() != '"' && peek() != '\n') ++at_;
      return literal(begin);
    }
    const std::string name(text_.substr(at_, length));
    at_ += length;
    const auto found = variables_.find(name);
    if (found == variables_.end()) return literal(begin);
    return first_of(found->second);
  }

  static Words first_of(const Words& values) {
    return {values.empty() ? std::string() : values[0]};
  }

  /// Past a group that begins at at_, nested ones included.
  void skip_group(char open, char close) {
    int depth = 0;
    for (std::size_t i = at_; i < text_.size(); ++i) {
      if (text_[i] == open) ++depth;
      if (text_[i] == close && --depth == 0) {
        at_ = i + 1;
        return;
      }
    }
    fail_open(std::string(1, open));
  }

  /// `body` of ${body}; `as_written` when it is none of the forms known here.
  Words expand_braces(std::string_view body, Words as_written) {
    const std::size_t length = name_length(body);
    if (length == 0) return as_written;
    const std::string name(body.substr(0, length));
    std::string_view rest = body.substr(length);
    const auto found = variables_.find(name);
    const bool known = found != variables_.end();
    if (rest == "[@]" || rest == "[*]") return known ? found->second : Words{};
    if (rest.empty()) return known ? first_of(found->second) : as_written;
    if (rest.starts_with(':')) rest.remove_prefix(1);
    const bool set = known && !found->second.empty() && !found->second[0].empty();
    switch (rest.empty() ? '\0' : rest[0]) {
      case '-':
      case '=':
        return set ? first_of(found->second) : Words{expand_text(rest.substr(1))};
      case '?':
        return set ? first_of(found->second) : as_written;
      case '+':
        return set ? Words{expand_text(rest.substr(1))} : Words{std::string()};
      default:
        return as_written;
    }
  }

  /// Text as between double quotes.
  std::string expand_text(std::string_view text) {
    if (nesting_ >= kMaxNesting) return std::string(text);
    ++nesting_;
    const std::string_view outer = std::exchange(text_, text);
    const std::size_t outer_at = std::exchange(at_, 0);
    const bool outer_array = std::exchange(in_array_, false);
    Words words;
    for (skip_blanks(); at_ < text_.size(); skip_blanks()) read_word(words);
    text_ = outer;
    at_ = outer_at;
    in_array_ = outer_array;
    --nesting_;
    std::string joined;
    for (const std::string& word : words) joined += (joined.empty() ? "" : " ") + word;
    return joined;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::map<std::string, std::string> given_;
  std::map<std::string, Words> variables_;
  Words exported_;
  Words here_documents_;
  std::size_t expanded_ = 0;
  int skipped_ = 0;  // Depth of `if` and `case`.
  int nesting_ = 0;
  bool in_array_ = false;
  bool ended_ = false;
  bool conditional_ = false;  // The statement follows && or ||.
};

}  // namespace

ShellCommand read_shell_script(std::string_view text,
                               const std::map<std::string, std::string>& env) {
  if (text.size() > kMaxText) throw Error("is longer than 1 MiB", "script");
  return ScriptReader(text, env).read();
}

}  // namespace meshwright
