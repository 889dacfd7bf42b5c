#include "engine/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "engine/comm.h"

namespace meshwright {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kWatched = 8;
constexpr int kStopped = 3;
const char* const kReason = "watch/reason";

std::string beat_key(int rank) { return fmt::format("watch/beat/{}", rank); }
std::string done_key(int rank) { return fmt::format("watch/done/{}", rank); }

void print_line(int rank, const std::string& reason) {
  const std::string line = fmt::format("meshwright: rank {}: {}; stopping\n", rank, reason);
  // One write: lines of ranks that share a terminal do not mix.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

[[noreturn]] void end_on_terminate() {
  std::string what = "an exception that nothing caught";
  try {
    if (const std::exception_ptr e = std::current_exception()) std::rethrow_exception(e);
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  const std::string line =
      fmt::format("meshwright: {}; stopping\n", what.substr(0, what.find('\n')));
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  _exit(kStopped);
}

/// Beats are "COUNT PLACE".
std::string place_of(const std::string& beat) {
  const std::size_t space = beat.find(' ');
  return space == std::string::npos ? "" : beat.substr(space + 1);
}

/// What is known of another rank.
struct Peer {
  std::string beat;
  std::string where;
  Clock::time_point changed;
  bool done = false;
};

}  // namespace

struct Watchdog::State {
  RunStore beats;     // of the thread
  RunStore farewell;  // of finish() and fail()
  std::function<std::string()> where;
  WatchdogTimes times;
  int rank, size;
  std::map<int, Peer> peers;

  std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  bool stop = false, acquitted = false;
  Clock::time_point answered = Clock::now();  // the store, last
  std::string master_where;
  std::thread beater, judge;

  State(const RunStore& store, std::function<std::string()> w, WatchdogTimes t)
      : beats(store.connect()),
        farewell(store.connect()),
        where(std::move(w)),
        times(t),
        rank(store.rendezvous().rank),
        size(store.rendezvous().size) {
    MW_CHECK(times.beat > milliseconds(0) && times.limit >= 2 * times.beat,
             "a watchdog's limit is at least two beats");
    const int most = std::min(kWatched, size - 1);
    for (int i = 1; i <= most; ++i) peers[(rank + i) % size] = {};
    if (rank != 0) peers[0] = {};
    // Nobody looks before all have said something.
    beats.set(beat_key(rank), fmt::format("0 {}", where()));
    beats.barrier("watch", store.rendezvous().timeout);
    for (auto& [r, peer] : peers) peer.changed = Clock::now();
    answered = Clock::now();
    beater = std::thread([this] { beat(); });
    judge = std::thread([this] { judge_store(); });
  }

  /// After this the thread looks no more. The judge goes on: calls of a store whose process is
  /// stopped block, also the thread's last.
  void stop_beats() {
    {
      const std::scoped_lock lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (beater.joinable()) beater.join();
  }

  void stop_judge() {
    {
      const std::scoped_lock lock(mutex);
      acquitted = true;
    }
    wake.notify_all();
    if (judge.joinable()) judge.join();
  }

  [[noreturn]] void end(const std::string& reason, bool post) {
    try {
      if (post && !beats.get(kReason)) beats.set(kReason, reason);
    } catch (const std::exception&) {
    }
    print_line(rank, with_place(reason));
    // The store ends with this process: the others shall have read why.
    if (rank == 0) std::this_thread::sleep_for(times.beat + times.beat / 2);
    _exit(kStopped);
  }

  // Beats are up to a second old; where this rank waits is news.
  std::string with_place(const std::string& reason) const {
    return fmt::format("{} (this rank was in {})", reason, where());
  }

  static std::string last_seen(int peer, const std::string& at) {
    return fmt::format("rank {} ({}last in {})", peer, peer == 0 ? "which serves the store; " : "",
                       at.empty() ? "nothing yet" : at);
  }

  /// True when `flag` was set.
  bool pause(milliseconds time, const bool& flag) {
    std::unique_lock lock(mutex);
    return wake.wait_for(lock, time, [&] { return flag; });
  }

  void beat() {
    std::int64_t count = 0;
    do {
      try {
        look(++count);
      } catch (const std::exception& e) {
        {
          const std::scoped_lock lock(mutex);
          if (stop) return;
        }
        print_line(rank,
                   with_place(fmt::format("{} is lost: {}", last_seen(0, master_where), e.what())));
        _exit(kStopped);
      }
    } while (!pause(times.beat, stop));
  }

  void look(std::int64_t count) {
    beats.set(beat_key(rank), fmt::format("{} {}", count, where()));
    if (const auto reason = beats.get(kReason)) end(*reason, false);
    for (auto& [r, peer] : peers) {
      const auto text = beats.get(beat_key(r)).value_or("");
      const auto now = Clock::now();
      if (text != peer.beat) {
        peer.beat = text;
        peer.where = place_of(text);
        peer.changed = now;
        const std::scoped_lock lock(mutex);
        if (r == 0) master_where = peer.where;
      }
      if (now - peer.changed > times.limit && !peer.done) {
        peer.done = beats.has_all({done_key(r)});
        if (!peer.done)
          end(fmt::format("{} has not been heard of for {:.1f} s", last_seen(r, peer.where),
                          std::chrono::duration<double>(now - peer.changed).count()),
              true);
      }
    }
    const std::scoped_lock lock(mutex);
    answered = Clock::now();
  }

  /// Calls of the store block while its process is stopped, so another thread looks at the clock.
  void judge_store() {
    while (!pause(times.beat / 4, acquitted)) {
      const std::scoped_lock lock(mutex);
      const auto silent = Clock::now() - answered;
      if (silent <= times.limit) continue;
      print_line(rank, with_place(fmt::format("{} has not answered for {:.1f} s",
                                              last_seen(0, master_where),
                                              std::chrono::duration<double>(silent).count())));
      _exit(kStopped);
    }
  }
};

Watchdog::Watchdog(const RunStore& store, std::function<std::string()> where, WatchdogTimes times) {
  std::set_terminate(end_on_terminate);
  state_ = std::make_unique<State>(store, std::move(where), times);
}

Watchdog::~Watchdog() {
  state_->stop_beats();
  state_->stop_judge();
}

void Watchdog::finish() {
  State& s = *state_;
  s.farewell.set(done_key(s.rank), "done");
  std::vector<std::string> all;
  for (int r = 0; r < s.size; ++r) all.push_back(done_key(r));
  // The threads go on watching: a rank that is lost before its end is reported as ever.
  while (s.rank == 0 && !s.farewell.has_all(all)) std::this_thread::sleep_for(milliseconds(10));
  s.stop_beats();
  s.stop_judge();
}

std::string Watchdog::fail(const std::string& message, std::optional<int> lost) {
  State& s = *state_;
  // The thread would end the process on reading the reason.
  s.stop_beats();
  std::string reason = failure_text(s.rank, message);
  const auto is_lost = [&](int peer, const std::string& where) {
    reason = fmt::format("{} is lost: {}", State::last_seen(peer, where), reason);
  };
  try {
    const auto earlier = s.farewell.get(kReason);
    if (earlier) {
      reason = *earlier;
    } else {
      if (lost) is_lost(*lost, place_of(s.farewell.get(beat_key(*lost)).value_or("")));
      s.farewell.set(kReason, reason);
    }
    s.farewell.set(done_key(s.rank), "failed");
  } catch (const std::exception&) {
    // The store is gone, so rank 0 is what was lost first.
    if (s.rank != 0) is_lost(0, s.peers[0].where);
  }
  s.stop_judge();
  if (s.rank == 0) std::this_thread::sleep_for(s.times.beat + s.times.beat / 2);
  return reason;
}

}  // namespace meshwright
