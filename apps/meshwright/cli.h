#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <string>

namespace meshwright::cli {

/// Exit codes of every command.
inline constexpr int kOk = 0;
inline constexpr int kNoPlan = 1;
inline constexpr int kUserError = 2;
inline constexpr int kInternalError = 70;

/// What the chosen subcommand will do once the command line has been read in full; returns the exit
/// code.
struct Action {
  std::function<int()> run;
};

/// One subcommand: a function that declares its options on `app` and sets `action` when chosen. One
/// file each, one line each in main.cpp.
using AddCommand = void (*)(CLI::App& app, Action& action);

void add_plan(CLI::App& app, Action& action);
void add_space(CLI::App& app, Action& action);
void add_import(CLI::App& app, Action& action);
void add_lower(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_emit(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_models(CLI::App& app, Action& action);
void add_clusters(CLI::App& app, Action& action);
void add_validate(CLI::App& app, Action& action);
void add_calibrate(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_resume(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);

/// Set by the first Ctrl-C; the second one ends the program as usual.
const std::atomic<bool>& interrupted();
void catch_interrupts();

/// Writes text to standard output.
void print(const std::string& text);

/// A line on standard error that replaces the one before; shown only on a terminal, and only when
/// the command has run for more than a second.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(const std::string& text);

 private:
  double start_;
  double last_ = 0;
  bool shown_ = false;
};

}  // namespace meshwright::cli
