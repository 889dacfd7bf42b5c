#include "cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>

namespace meshwright::cli {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) {
  stop_requested.store(true);
  std::signal(SIGINT, SIG_DFL);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

const std::atomic<bool>& interrupted() { return stop_requested; }

void catch_interrupts() { std::signal(SIGINT, on_interrupt); }

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

ProgressLine::ProgressLine() : start_(now()) {}

void ProgressLine::show(const std::string& text) {
  const double t = now();
  if (t - start_ < 1 || t - last_ < 0.2 || isatty(STDERR_FILENO) == 0) return;
  last_ = t;
  shown_ = true;
  std::fputs(fmt::format("\r\033[K{:.0f} s  {}", t - start_, text).c_str(), stderr);
  std::fflush(stderr);
}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

}  // namespace meshwright::cli
