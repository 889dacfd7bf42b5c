#include "run/verdict.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <tuple>

namespace meshwright {
namespace {

constexpr std::size_t kLastWords = 300;
constexpr int kMaxPlaces = 64;

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal)
                         : fmt::format("signal {} (SIG{})", signal, name);
}

std::string last_line(std::string_view text) {
  while (!text.empty()) {
    const std::size_t newline = text.rfind('\n');
    const std::string line =
        one_line(newline == std::string_view::npos ? text : text.substr(newline + 1), kLastWords);
    if (line.find_first_not_of(' ') != std::string::npos) return line;
    if (newline == std::string_view::npos) break;
    text = text.substr(0, newline);
  }
  return {};
}

}  // namespace

std::optional<Fault> fault_of(int rank, const RankView& view) {
  Fault fault{.rank = rank, .ns = view.seen_ns};
  const bool by_us = view.terminated && view.status && WIFSIGNALED(*view.status) &&
                     (WTERMSIG(*view.status) == SIGTERM || WTERMSIG(*view.status) == SIGKILL);
  if (view.slot.state == RankState::kFailed) {
    fault.weight = view.slot.blames >= 0 ? FaultWeight::kConsequence : FaultWeight::kOwn;
    fault.ns = view.slot.failure_ns;
    fault.what = "failed: " + view.slot.failure;
    fault.exit_code = view.slot.failure_code;
  } else if (view.status && WIFSIGNALED(*view.status) && !by_us) {
    const int signal = WTERMSIG(*view.status);
    fault.weight =
        signal == SIGABRT || signal == SIGPIPE ? FaultWeight::kAborted : FaultWeight::kCause;
    fault.what = "was killed by " + signal_text(signal);
  } else if (view.status && WIFEXITED(*view.status) && WEXITSTATUS(*view.status) == 1 &&
             view.slot.state == RankState::kFinished) {
    return std::nullopt;  // An answer, not a fault.
  } else if (view.status && WIFEXITED(*view.status) && WEXITSTATUS(*view.status) != 0) {
    fault.exit_code = WEXITSTATUS(*view.status);
    fault.what = fmt::format("exited with code {}", fault.exit_code);
  } else if (view.status && WIFEXITED(*view.status) &&
             (view.slot.state == RankState::kStarting || view.slot.state == RankState::kRunning)) {
    fault.what = "exited before its work was done";
  } else if (!view.status && view.silent_ms >= view.silence_limit_ms) {
    fault.weight = FaultWeight::kCause;
    fault.ns -= static_cast<std::int64_t>(view.silent_ms * 1e6);
    fault.what = fmt::format(
        "{} for {:.1f} s",
        view.stopped ? "is stopped by a signal and has not answered" : "has not answered",
        view.silent_ms / 1000);
  } else {
    return std::nullopt;
  }
  // The user's error and a bug of ours keep their codes; all else is a run that failed.
  if (fault.exit_code != 2 && fault.exit_code != 70) fault.exit_code = 1;
  return fault;
}

std::optional<Fault> root_fault(std::span<const RankView> ranks) {
  std::optional<Fault> root;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::optional<Fault> fault = fault_of(static_cast<int>(rank), ranks[rank]);
    if (!fault) continue;
    if (!root || std::tie(fault->weight, fault->ns) < std::tie(root->weight, root->ns)) {
      root = std::move(fault);
    }
  }
  return root;
}

std::string fault_message(const Fault& fault, const RankView& view) {
  std::string message = fmt::format("rank {} {}", fault.rank, fault.what);
  const bool own_word = view.slot.state == RankState::kFailed;
  if (!view.slot.place.empty()) {
    message += own_word ? fmt::format(" (at {})", view.slot.place) : " at " + view.slot.place;
  } else if (!own_word) {
    message += view.slot.state == RankState::kAbsent ? " while being loaded" : " while starting";
  }
  if (own_word) return message;
  const std::string words = last_line(view.errors);
  if (!words.empty()) message += "; its last words: " + words;
  return message;
}

std::string all_places(std::span<const RankView> ranks) {
  std::string text;
  int named = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankView& view = ranks[rank];
    if (view.status) continue;
    if (named++ == kMaxPlaces) return text + "; …";
    text += fmt::format("{}rank {}{}", text.empty() ? "" : "; ", rank,
                        view.slot.place.empty() ? " starting" : " at " + view.slot.place);
  }
  return text;
}

}  // namespace meshwright
