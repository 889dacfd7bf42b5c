#include "run/supervise.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <span>

#include "base/error.h"
#include "run/spawn.h"
#include "run/verdict.h"

namespace meshwright {
namespace {

constexpr int kMaxRanks = 1024;
constexpr int kTickMs = 20;
constexpr std::size_t kKeptErrors = 4096;
// After the first fault: for the fault that it follows from to show.
constexpr double kSettleMs = 300;
// How long the kernel may take to end what got SIGKILL.
constexpr double kKillMs = 2000;
// A longer gap between two looks was this process's own (Ctrl-Z, a starved machine): ranks are not
// held to it.
constexpr double kLongestGapMs = 500;
constexpr double kTellMs = 250;

double ms_between(std::int64_t from, std::int64_t to) {
  return static_cast<double>(to - from) * 1e-6;
}

bool is_set(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(); }

class Supervisor {
 public:
  Supervisor(const RankCommand& command, const SuperviseOptions& options);
  ~Supervisor() { end_all(0); }
  RunEnd run();

 private:
  struct Rank {
    Process process;
    bool beaten_since_fault = false;
  };

  /// Waits a tick, then looks at everything.
  void look();
  void read_errors(std::size_t rank);
  bool running(std::size_t rank) const { return !views_[rank].status; }
  bool any_running() const;
  void tell();
  void send(std::size_t rank, int signal);
  /// SIGTERM to all, SIGKILL to those left after `grace_ms`. False when some do not even end then.
  bool end_all(double grace_ms);
  /// Has all been seen that a fault may follow from?
  bool settled(const Fault& fault) const;
  RunEnd failed();
  RunEnd stalled();
  RunEnd interrupted();

  const SuperviseOptions& options_;
  BeatMap beats_;
  ReservedPort port_;
  std::vector<Rank> ranks_;
  std::vector<RankView> views_;
  std::int64_t start_ns_ = monotonic_ns();
  std::int64_t look_ns_ = start_ns_;
  std::int64_t told_ns_ = start_ns_;
  double idle_ms_ = 0;    ///< Since any rank said where it is.
  double fault_ms_ = -1;  ///< Since the first fault; -1 = none.
};

Supervisor::Supervisor(const RankCommand& command, const SuperviseOptions& options)
    : options_(options),
      beats_(BeatMap::create(options.ranks)),
      port_(reserve_port(options.master_port)) {
  const std::vector<int> cores = options.pin ? allowed_cores() : std::vector<int>();
  ranks_.reserve(static_cast<std::size_t>(options.ranks));
  views_.reserve(ranks_.capacity());
  for (int rank = 0; rank < options.ranks; ++rank) {
    SpawnOptions spawn_options;
    spawn_options.program = command.program;
    spawn_options.arguments = command.arguments;
    spawn_options.environment = {{"RANK", std::to_string(rank)},
                                 {"LOCAL_RANK", std::to_string(rank)},
                                 {"WORLD_SIZE", std::to_string(options.ranks)},
                                 {"MASTER_ADDR", options.master_address},
                                 {"MASTER_PORT", std::to_string(port_.number)},
                                 {kBeatsVariable, std::to_string(beats_.fd())},
                                 {"OMP_NUM_THREADS", "1"},
                                 {"OPENBLAS_NUM_THREADS", "1"},
                                 {"MKL_NUM_THREADS", "1"},
                                 {"OMP_WAIT_POLICY", "passive"}};
    if (!cores.empty()) spawn_options.core = cores[static_cast<std::size_t>(rank) % cores.size()];
    if (rank == 0) spawn_options.output = options.output;
    spawn_options.keep = beats_.fd();
    try {
      Rank started;
      started.process = spawn(spawn_options);
      ranks_.push_back(std::move(started));
      views_.emplace_back();
    } catch (const Error& e) {
      end_all(0);
      throw options.ranks == 1 ? e : e.within(fmt::format("rank {} of {}", rank, options.ranks));
    }
  }
}

bool Supervisor::any_running() const {
  return std::any_of(views_.begin(), views_.end(), [](const RankView& v) { return !v.status; });
}

void Supervisor::read_errors(std::size_t rank) {
  Descriptor& pipe = ranks_[rank].process.errors;
  std::string& kept = views_[rank].errors;
  char buffer[4096];
  // Bounded, so that a rank that writes without end keeps nobody from being looked at.
  for (int i = 0; i < 64 && pipe.get() >= 0; ++i) {
    const ssize_t count = ::read(pipe.get(), buffer, sizeof buffer);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return pipe.reset();
    kept.append(buffer, static_cast<std::size_t>(count));
    if (kept.size() > kKeptErrors) kept.erase(0, kept.size() - kKeptErrors);
  }
}

void Supervisor::look() {
  std::vector<pollfd> pipes;
  for (const Rank& rank : ranks_) {
    if (rank.process.errors.get() >= 0) pipes.push_back({rank.process.errors.get(), POLLIN, 0});
  }
  ::poll(pipes.data(), pipes.size(), kTickMs);
  const std::int64_t now = monotonic_ns();
  const double gap = std::min(ms_between(look_ns_, now), kLongestGapMs);
  look_ns_ = now;
  idle_ms_ += gap;
  if (fault_ms_ >= 0) fault_ms_ += gap;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankView& view = views_[r];
    if (!view.status) {
      view.status = reap(ranks_[r].process.pid);
      view.seen_ns = now;
      if (view.status) idle_ms_ = 0;
    }
    read_errors(r);
    const BeatReading before = std::move(view.slot);
    view.slot = read_beats(beats_.slot(static_cast<int>(r)));
    if (view.slot.places != before.places || view.slot.state != before.state) idle_ms_ = 0;
    if (view.slot.beats != before.beats) {
      view.silent_ms = 0;
      view.stopped = false;
      if (fault_ms_ >= 0) ranks_[r].beaten_since_fault = true;
    } else {
      view.silent_ms += gap;
    }
    if (view.status) continue;
    if (view.silent_ms >= options_.beat_limit_ms && !view.stopped) {
      const char state = process_state(ranks_[r].process.pid);
      view.stopped = state == 'T' || state == 't';
    }
    const bool loading = view.slot.state == RankState::kAbsent && !view.stopped;
    view.silence_limit_ms = loading ? std::max(options_.start_limit_ms, options_.beat_limit_ms)
                                    : options_.beat_limit_ms;
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankView& view = views_[r];
    if (view.slot.state == RankState::kFailed) {
      view.slot = read_slot(beats_.slot(static_cast<int>(r)));
    }
    if (fault_ms_ < 0 && fault_of(static_cast<int>(r), view)) fault_ms_ = 0;
  }
}

void Supervisor::tell() {
  if (!options_.progress || ms_between(told_ns_, look_ns_) < kTellMs) return;
  told_ns_ = look_ns_;
  options_.progress(read_slot(beats_.slot(0)).place);
}

void Supervisor::send(std::size_t rank, int signal) {
  if (!running(rank)) return;
  views_[rank].terminated = true;
  ::kill(-ranks_[rank].process.pid, signal);
}

bool Supervisor::end_all(double grace_ms) {
  const std::int64_t start = monotonic_ns();
  if (grace_ms > 0) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) send(r, SIGTERM);
    while (any_running() && ms_between(start, monotonic_ns()) < grace_ms) look();
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) send(r, SIGKILL);
  const std::int64_t kill = monotonic_ns();
  while (any_running() && ms_between(kill, monotonic_ns()) < kKillMs) look();
  return !any_running();
}

bool Supervisor::settled(const Fault& fault) const {
  if (fault.weight == FaultWeight::kCause) return true;
  if (fault_ms_ < kSettleMs) return false;
  if (fault.weight == FaultWeight::kOwn) return true;
  // A consequence. Its cause may be a rank that is stopped, or dying without being dead: all that
  // beat since are neither. Falling silent makes a rank the cause, so this ends.
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (running(r) && !ranks_[r].beaten_since_fault && views_[r].slot.state != RankState::kFailed &&
        fault_ms_ < options_.beat_limit_ms) {
      return false;
    }
  }
  return true;
}

RunEnd Supervisor::failed() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    views_[r].slot = read_slot(beats_.slot(static_cast<int>(r)));
  }
  const std::optional<Fault> fault = root_fault(views_);
  MW_CHECK(fault.has_value(), "a run that failed has a fault");
  RunEnd end;
  end.culprit = fault->rank;
  end.exit_code = fault->exit_code;
  const auto culprit = static_cast<std::size_t>(fault->rank);
  const RankView at_fault = views_[culprit];
  // It may be stopped, which leaves SIGTERM waiting.
  if (fault->weight == FaultWeight::kCause) send(culprit, SIGKILL);
  const bool all_ended = end_all(options_.grace_ms);
  end.message = fault_message(*fault, at_fault);
  if (!all_ended) end.message += " (and some process does not end even when killed)";
  return end;
}

RunEnd Supervisor::stalled() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    views_[r].slot = read_slot(beats_.slot(static_cast<int>(r)));
  }
  RunEnd end;
  end.exit_code = 1;
  end.message = fmt::format("no rank has got on for {:.1f} s (deadlock?): {}", idle_ms_ / 1000,
                            all_places(views_));
  end_all(options_.grace_ms);
  return end;
}

RunEnd Supervisor::interrupted() {
  RunEnd end;
  end.interrupted = true;
  end.exit_code = 130;
  beats_.header().gate.fetch_or(BeatHeader::kStop);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!views_[r].slot.at_gate) send(r, SIGTERM);
  }
  const std::int64_t start = monotonic_ns();
  double limit_ms = options_.interrupt_grace_ms;
  while (any_running() && ms_between(start, monotonic_ns()) < limit_ms &&
         !is_set(options_.stop_now)) {
    look();
    tell();
    // The others may wait in vain for the one that failed.
    if (fault_ms_ >= options_.grace_ms) break;
  }
  std::string left;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (running(r)) left += fmt::format("{}{}", left.empty() ? "" : ", ", r);
    views_[r].slot = read_slot(beats_.slot(static_cast<int>(r)));
  }
  end.message = "interrupted";
  const std::optional<Fault> fault = root_fault(views_);
  if (fault) {
    end.culprit = fault->rank;
    end.message += "; " + fault_message(*fault, views_[static_cast<std::size_t>(fault->rank)]);
  } else if (!left.empty()) {
    end.message += fmt::format("; killed before they had ended: {} {}",
                               left.find(',') == std::string::npos ? "rank" : "ranks", left);
  } else if (const std::uint64_t gate = beats_.header().gate.load() & ~BeatHeader::kStop;
             gate > 0) {
    end.message += fmt::format("; all ranks ended after step {}", gate);
  }
  end_all(0);
  return end;
}

RunEnd Supervisor::run() {
  RunEnd end;
  while (true) {
    look();
    tell();
    if (is_set(options_.stop) || is_set(options_.stop_now)) {
      end = interrupted();
      break;
    }
    if (fault_ms_ >= 0) {
      const std::optional<Fault> fault = root_fault(views_);
      if (!fault) {
        fault_ms_ = -1;  // A silent rank that beats again.
      } else if (settled(*fault) || !any_running()) {
        end = failed();
        break;
      }
    } else if (!any_running()) {
      end.ok = true;
      for (const RankView& view : views_) {
        if (view.status && WIFEXITED(*view.status) && WEXITSTATUS(*view.status) != 0) {
          end.exit_code = 1;
        }
      }
      break;
    } else if (idle_ms_ >= options_.progress_limit_ms) {
      end = stalled();
      break;
    }
  }
  for (RankView& view : views_) end.errors.push_back(std::move(view.errors));
  end.seconds = ms_between(start_ns_, monotonic_ns()) * 1e-3;
  return end;
}

}  // namespace

RunEnd supervise(const RankCommand& command, const SuperviseOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    throw Error(fmt::format("{} ranks cannot be started here: between 1 and {} can", options.ranks,
                            kMaxRanks));
  }
  MW_CHECK(options.beat_limit_ms >= 1 && options.progress_limit_ms >= 1, "limits are positive");
  return Supervisor(command, options).run();
}

}  // namespace meshwright
