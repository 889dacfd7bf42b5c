#include "rank/reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr const char* kVariable = "MESHWRIGHT_TEST_FAULT";

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int number(std::string_view text) {
  int value = -1;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Error(fmt::format("{} is no number", in_quotes(text)), kVariable);
  }
  return value;
}

int restarts_so_far() {
  const char* text = std::getenv("MESHWRIGHT_RESTARTS");
  return text == nullptr ? 0 : number(text);
}

}  // namespace

std::vector<TestFault> parse_test_faults(std::string_view text) {
  std::vector<TestFault> faults;
  if (text.empty()) return faults;
  for (const std::string_view one : split(text, ',')) {
    const std::vector<std::string_view> parts = split(one, ':');
    if (parts.size() != 4 && parts.size() != 5) {
      throw Error(fmt::format("{} is not rank:step:place:signal", in_quotes(one)), kVariable);
    }
    faults.push_back({number(parts[0]), number(parts[1]),
                      parts[2] == "checkpoint" ? -1 : number(parts[2]), number(parts[3]),
                      parts.size() == 5 ? number(parts[4]) : 0});
  }
  return faults;
}

Reporter::Reporter(Heartbeat& heartbeat, RunTimeline* timeline, int rank)
    : heartbeat_(heartbeat), timeline_(timeline) {
  const char* text = std::getenv(kVariable);
  if (text == nullptr) return;
  const int restarts = restarts_so_far();
  for (const TestFault& f : parse_test_faults(text)) {
    if (f.rank == rank && f.restart == restarts) faults_.push_back(f);
  }
}

void Reporter::fault(const RunPlace& place) {
  if (place.step != step_) {
    step_ = place.step;
    places_ = 0;
  }
  for (const TestFault& f : faults_) {
    const bool here =
        f.place < 0 ? std::string_view(place.phase) == "checkpoint" : places_ == f.place;
    if (f.step == place.step + 1 && here) ::kill(::getpid(), f.signal);
  }
  ++places_;
}

void Reporter::begin(const RunPlace& p) {
  const std::string_view kind = p.instr == nullptr ? "" : describe(*p.instr);
  heartbeat_.where({p.step + 1, p.phase, p.chunk, p.micro_batch, p.instruction, kind,
                    p.op == nullptr ? std::string_view() : std::string_view(*p.op)});
  if (!heartbeat_.supervised()) {
    const std::lock_guard lock(mutex_);
    place_ = p;
    op_ = p.op == nullptr ? "" : *p.op;
    kind_ = kind;
  }
  if (timeline_ != nullptr) timeline_->begin(p);
  if (!faults_.empty()) fault(p);
}

std::string Reporter::where() {
  const std::lock_guard lock(mutex_);
  return place_text(place_, kind_, op_);
}

}  // namespace meshwright
