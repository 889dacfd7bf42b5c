#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright {

/// What a launch script runs.
struct ShellCommand {
  std::map<std::string, std::string> env;  ///< Variables exported before it or set in front of it.
  std::vector<std::string> words;          ///< Expanded; without redirections.
};

/// Finds the training command of a POSIX or bash script without running anything: the first command
/// that names a script `*pretrain*.py`, else the first with a `*.py` word. Assignments, arrays and
/// `export` before it are followed; `$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME[@]}` are
/// expanded from them and from `env`, which wins. What cannot be known stays as it is written:
/// other expansions, `$(...)`, variables that are set nowhere; `"$@"` is nothing. Branches of `if`
/// and `case` are skipped, bodies of loops and functions read once. Throws Error for an open quote,
/// for no such command, and for more than 1 MiB of text or 8 MiB of expansions.
ShellCommand read_shell_script(std::string_view text,
                               const std::map<std::string, std::string>& env = {});

}  // namespace meshwright
