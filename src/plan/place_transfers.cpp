// Sends, receives and their waits between the passes of all lanes. All passes are replayed in units
// of time first; the time at which a message is ready gives receives their order (see lanes.h).
// Linear in the number of passes and messages but for sorting the receives of a lane.
#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "plan/lanes.h"

namespace meshwright {
namespace {

// What a pass waits for and what it gives, as indices into Program::transfers.
struct Flows {
  std::vector<std::vector<int>> in, out;  // Per 2 * chunk + (backward pass).

  explicit Flows(const Program& program)
      : in(2 * program.chunks.size()), out(2 * program.chunks.size()) {
    for (std::size_t t = 0; t < program.transfers.size(); ++t) {
      const Transfer& transfer = program.transfers[t];
      const auto slot = [&](int chunk) {
        return 2 * static_cast<std::size_t>(chunk) + (transfer.gradient ? 1 : 0);
      };
      out[slot(transfer.from_chunk)].push_back(static_cast<int>(t));
      in[slot(transfer.to_chunk)].push_back(static_cast<int>(t));
    }
  }
  // Weight passes neither wait nor send.
  static int slot(const ScheduleItem& item) {
    return item.phase == Phase::kWeight ? -1
                                        : 2 * item.chunk + (item.phase == Phase::kBackward ? 1 : 0);
  }
};

constexpr std::int32_t kNever = -1;

// All passes in units of time.
class Replay {
 public:
  explicit Replay(const Program& program)
      : flows(program),
        start(program.lanes.size()),
        program_(program),
        covered_(lanes_of_stages(program.lanes)),
        micro_(static_cast<std::size_t>(program.micro_batches)),
        ready_(program.transfers.size() * micro_, kNever) {
    run();
  }

  const Flows flows;
  std::vector<std::vector<std::int32_t>> start;  // Per lane and pass.
  // When a message is there to be sent.
  std::int32_t ready(int transfer, int micro_batch) const {
    return ready_[slot(transfer, micro_batch)];
  }

 private:
  const std::vector<int>& lanes_of_chunk(int chunk) const {
    const int stage = program_.chunks[static_cast<std::size_t>(chunk)].stage;
    return covered_[static_cast<std::size_t>(stage)];
  }
  std::size_t slot(int transfer, int micro_batch) const {
    return static_cast<std::size_t>(transfer) * micro_ + static_cast<std::size_t>(micro_batch);
  }
  void run();

  const Program& program_;
  const std::vector<std::vector<int>> covered_;
  const std::size_t micro_;
  std::vector<std::int32_t> ready_;
};

void Replay::run() {
  const std::size_t count = program_.lanes.size();
  std::vector<std::int32_t> clock(count, 0);
  std::vector<std::size_t> waits_for(count, SIZE_MAX);
  std::vector<int> arrived(program_.chunks.size(), 0);  // Lanes that have come to a shared pass.
  std::vector<int> ready_lanes;
  for (std::size_t l = count; l-- > 0;) {
    ready_lanes.push_back(static_cast<int>(l));
    start[l].reserve(program_.lanes[l].order.size());
  }
  const auto finish = [&](const ScheduleItem& item, std::int32_t end) {
    const int at = Flows::slot(item);
    if (at < 0) return;
    for (int t : flows.out[static_cast<std::size_t>(at)]) {
      const std::size_t message = slot(t, item.micro_batch);
      ready_[message] = end;
      const int to = program_.transfers[static_cast<std::size_t>(t)].to_chunk;
      for (int l : lanes_of_chunk(to)) {
        if (waits_for[static_cast<std::size_t>(l)] != message) continue;
        waits_for[static_cast<std::size_t>(l)] = SIZE_MAX;
        ready_lanes.push_back(l);
      }
    }
  };
  while (!ready_lanes.empty()) {
    const auto lane = static_cast<std::size_t>(ready_lanes.back());
    ready_lanes.pop_back();
    const std::vector<ScheduleItem>& order = program_.lanes[lane].order;
    while (start[lane].size() < order.size()) {
      const ScheduleItem& item = order[start[lane].size()];
      std::int32_t begin = clock[lane];
      bool blocked = false;
      if (const int at = Flows::slot(item); at >= 0) {
        for (int t : flows.in[static_cast<std::size_t>(at)]) {
          const std::size_t message = slot(t, item.micro_batch);
          if (ready_[message] == kNever) {
            waits_for[lane] = message;
            blocked = true;
            break;
          }
          begin = std::max(begin, ready_[message]);
        }
      }
      if (blocked) break;
      const std::vector<int>& together = lanes_of_chunk(item.chunk);
      if (together.size() == 1) {
        start[lane].push_back(begin);
        clock[lane] = begin + 1;
        finish(item, begin + 1);
        continue;
      }
      clock[lane] = begin;
      int& here = arrived[static_cast<std::size_t>(item.chunk)];
      if (++here < static_cast<int>(together.size())) break;
      here = 0;
      const ScheduleItem pass = item;
      for (int l : together) begin = std::max(begin, clock[static_cast<std::size_t>(l)]);
      for (int l : together) {
        const auto other = static_cast<std::size_t>(l);
        const auto& there = program_.lanes[other].order;
        MW_CHECK(start[other].size() < there.size() && there[start[other].size()] == pass,
                 "lanes run a shared stage in different orders");
        start[other].push_back(begin);
        clock[other] = begin + 1;
        if (other != lane) ready_lanes.push_back(l);
      }
      finish(pass, begin + 1);
    }
  }
  for (std::size_t l = 0; l < count; ++l) {
    MW_CHECK(start[l].size() == program_.lanes[l].order.size(), "the schedule deadlocks");
  }
}

void place(Program& program, const Replay& replay, std::size_t lane) {
  struct Receive {
    std::int32_t ready;  // When the message is sent.
    int transfer;
    int micro_batch;
    std::int32_t before;  // Index of the pass that it stands before.
  };
  const std::vector<ScheduleItem> passes = std::move(program.lanes[lane].order);
  const std::vector<std::int32_t>& start = replay.start[lane];
  std::vector<Receive> receives;
  for (std::size_t k = 0; k < passes.size(); ++k) {
    const int at = Flows::slot(passes[k]);
    if (at < 0) continue;
    for (int t : replay.flows.in[static_cast<std::size_t>(at)]) {
      receives.push_back({replay.ready(t, passes[k].micro_batch), t, passes[k].micro_batch,
                          static_cast<std::int32_t>(k == 0 ? 0 : k - 1)});
    }
  }
  std::sort(receives.begin(), receives.end(), [](const Receive& a, const Receive& b) {
    return a.ready != b.ready         ? a.ready < b.ready
           : a.transfer != b.transfer ? a.transfer < b.transfer
                                      : a.micro_batch < b.micro_batch;
  });
  // Backward: no receive stands behind one of a later message, or behind a pass that starts when
  // the message is there.
  std::size_t later = passes.size();
  std::int32_t least = static_cast<std::int32_t>(passes.size());
  for (std::size_t r = receives.size(); r-- > 0;) {
    while (later > 0 && start[later - 1] >= receives[r].ready) --later;
    least = std::min({least, receives[r].before, static_cast<std::int32_t>(later)});
    receives[r].before = least;
  }

  std::vector<ScheduleItem>& order = program.lanes[lane].order;
  order.clear();
  order.reserve(passes.size() + 4 * receives.size());
  std::vector<std::int32_t> outstanding(program.transfers.size(), -1);  // Micro-batch of a send.
  std::vector<int> senders;  // Transfers that this lane sends, in the order of their first send.
  std::size_t next = 0;
  for (std::size_t k = 0; k < passes.size(); ++k) {
    const ScheduleItem& pass = passes[k];
    for (; next < receives.size() && receives[next].before <= static_cast<std::int32_t>(k);
         ++next) {
      order.push_back({Phase::kReceive, receives[next].transfer, receives[next].micro_batch});
    }
    const int at = Flows::slot(pass);
    if (at >= 0) {
      for (int t : replay.flows.in[static_cast<std::size_t>(at)]) {
        order.push_back({Phase::kReceiveWait, t, pass.micro_batch});
      }
    }
    order.push_back(pass);
    if (at < 0) continue;
    for (int t : replay.flows.out[static_cast<std::size_t>(at)]) {
      std::int32_t& last = outstanding[static_cast<std::size_t>(t)];
      if (last >= 0)
        order.push_back({Phase::kSendWait, t, last});
      else
        senders.push_back(t);
      order.push_back({Phase::kSend, t, pass.micro_batch});
      last = pass.micro_batch;
    }
  }
  for (int t : senders) {
    order.push_back({Phase::kSendWait, t, outstanding[static_cast<std::size_t>(t)]});
  }
}

}  // namespace

void place_transfers(Program& program) {
  const Replay replay(program);
  for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) place(program, replay, lane);
}

std::vector<std::vector<std::int32_t>> unit_starts(const Program& program) {
  return Replay(program).start;
}

}  // namespace meshwright
