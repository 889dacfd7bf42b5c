#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace meshwright {

/// The user's input is at fault. The message says the rule and the values; `where` is `file:line`,
/// a JSON pointer, an option or an operator name; `hint` says what would work. The CLI exits with
/// code 2.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string message, std::string where = {}, std::string hint = {});

  const std::string& message() const { return message_; }
  const std::string& where() const { return where_; }
  const std::string& hint() const { return hint_; }

  /// The same error, found while reading `place`: prefixes `where`.
  Error within(std::string_view place) const;

 private:
  std::string message_;
  std::string where_;
  std::string hint_;
};

/// A bug in Meshwright. The CLI exits with code 70.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws InternalError with file and line when `condition` is false.
#define MW_CHECK(condition, message)                                           \
  do {                                                                         \
    if (!(condition)) ::meshwright::fail_check(__FILE__, __LINE__, (message)); \
  } while (false)

[[noreturn]] void fail_check(const char* file, int line, std::string_view message);

}  // namespace meshwright
