// Orders of lanes. First each lane by itself: what is due is there once, after what it needs. Then
// pairs of lanes: messages leave and arrive in one order. Last all lanes together: run them under
// blocking semantics until nothing moves; lanes that have not ended then wait for each other in a
// circle. Linear in the number of entries.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "mesh/region.h"
#include "verify/program_replay.h"

namespace meshwright {
namespace {

std::string item_text(const Program& program, const ScheduleItem& item) {
  if (is_pass(item.phase)) {
    return fmt::format("{} of chunk {}, micro-batch {}", phase_name(item.phase), item.chunk,
                       item.micro_batch);
  }
  const Transfer& t = program.transfers[static_cast<std::size_t>(item.chunk)];
  return fmt::format("{} of transfer {} ({} from chunk {} to {}), micro-batch {}",
                     phase_name(item.phase), item.chunk, t.gradient ? "gradients" : "values",
                     t.from_chunk, t.to_chunk, item.micro_batch);
}

class Orders {
 public:
  Orders(const Program& program, const Plan& plan, const OrderNeeds& needs, VerifyCounts& counts)
      : program_(program),
        plan_(plan),
        needs_(needs),
        counts_(counts),
        micro_batches_(static_cast<std::size_t>(program.micro_batches)),
        chunks_(plan.chunks.size()),
        transfers_(program.transfers.size()) {}

  void run() {
    find_lanes();
    find_due();
    for (std::size_t l = 0; l < program_.lanes.size(); ++l) check_lane(l);
    check_messages();
    play();
  }

 private:
  int stage(int chunk) const { return plan_.chunks[static_cast<std::size_t>(chunk)].stage; }
  const std::vector<ScheduleItem>& order(std::size_t lane) const {
    return program_.lanes[lane].order;
  }
  const std::vector<int>& lanes_of_stage(int s) const {
    return lanes_[static_cast<std::size_t>(s)];
  }
  bool covers(std::size_t lane, int s) const {
    const std::vector<int>& stages = program_.lanes[lane].stages;
    return std::find(stages.begin(), stages.end(), s) != stages.end();
  }
  // The stage whose devices run an entry.
  int stage_of(const ScheduleItem& item) const {
    if (is_pass(item.phase)) return stage(item.chunk);
    const Transfer& t = program_.transfers[static_cast<std::size_t>(item.chunk)];
    return stage(sends(item.phase) ? t.from_chunk : t.to_chunk);
  }
  static bool sends(Phase p) { return p == Phase::kSend || p == Phase::kSendWait; }
  // A number for each kind of entry, chunk or transfer, and micro-batch.
  std::size_t slot(Phase phase, int index, std::size_t micro_batch) const {
    const auto i = static_cast<std::size_t>(index);
    const std::size_t row =
        is_pass(phase) ? static_cast<std::size_t>(phase) * chunks_ + i
                       : 3 * chunks_ + (static_cast<std::size_t>(phase) - 3) * transfers_ + i;
    return row * micro_batches_ + micro_batch;
  }
  [[noreturn]] void fail(std::string message, std::size_t lane, const ScheduleItem* item = nullptr,
                         std::vector<std::string> history = {}) const {
    CounterExample e;
    e.check = "order";
    e.message = std::move(message);
    e.instruction = fmt::format("lane {}", lane);
    if (item != nullptr) e.instruction += ": " + item_text(program_, *item);
    e.rank = program_.lanes[lane].mesh.first_device;
    e.history = std::move(history);
    throw Disproof{std::move(e)};
  }
  void find_lanes();
  void find_due();
  void check_lane(std::size_t lane);
  void check_messages();
  void play();
  [[noreturn]] void deadlock(const std::vector<std::size_t>& at,
                             const std::vector<int>& waits_for) const;

  const Program& program_;
  const Plan& plan_;
  const OrderNeeds& needs_;
  VerifyCounts& counts_;
  std::size_t micro_batches_, chunks_, transfers_;
  std::vector<std::vector<int>> lanes_;          // Per stage.
  std::map<int, std::vector<bool>> due_;         // Per replica: its micro-batches.
  std::vector<bool> has_backward_, has_weight_;  // Per chunk.
};

void Orders::find_lanes() {
  lanes_.resize(plan_.stages.size());
  for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
    for (int s : program_.lanes[l].stages)
      lanes_[static_cast<std::size_t>(s)].push_back(static_cast<int>(l));
  }
  const auto devices_of = [](const Mesh& mesh, std::vector<std::int32_t>& list) {
    for (int i = 0; i < mesh.device_count(); ++i) {
      list.push_back(device_at(mesh, mesh_coordinates(mesh, i)).value);
    }
  };
  for (std::size_t s = 0; s < lanes_.size(); ++s) {
    std::vector<std::int32_t> own, run;
    devices_of(plan_.stages[s].mesh, own);
    for (int l : lanes_[s]) devices_of(program_.lanes[static_cast<std::size_t>(l)].mesh, run);
    std::sort(own.begin(), own.end());
    std::sort(run.begin(), run.end());
    if (own != run) {
      CounterExample e;
      e.check = "order";
      e.message = fmt::format("its lanes run {} devices, which are not the {} of stage {}",
                              run.size(), own.size(), s);
      e.rank = plan_.stages[s].mesh.first_device;
      throw Disproof{std::move(e)};
    }
  }
  has_backward_.resize(chunks_);
  has_weight_.resize(chunks_);
  for (std::size_t c = 0; c < chunks_; ++c) {
    for (int i : program_.chunks[c].segments) {
      const SegmentProgram& p = program_.segments[static_cast<std::size_t>(i)];
      if (!p.backward.empty()) has_backward_[c] = true;
      if (!p.weight.empty()) has_weight_[c] = true;
    }
  }
}

// Every micro-batch runs in one replica: in that whose first chunk runs it.
void Orders::find_due() {
  std::vector<int> times(micro_batches_);
  for (std::size_t c = 0; c < chunks_; ++c) {
    if (plan_.chunks[c].first_segment != 0) continue;
    std::vector<bool>& mine = due_[plan_.chunks[c].replica];
    mine.resize(micro_batches_);
    const auto lane = static_cast<std::size_t>(lanes_of_stage(plan_.chunks[c].stage)[0]);
    for (const ScheduleItem& item : order(lane)) {
      if (item.phase == Phase::kForward && item.chunk == static_cast<int>(c)) {
        const auto m = static_cast<std::size_t>(item.micro_batch);
        if (!mine[m]) ++times[m];
        mine[m] = true;
      }
    }
  }
  for (std::size_t m = 0; m < micro_batches_; ++m) {
    if (times[m] == 1) continue;
    CounterExample e;
    e.check = "order";
    e.message =
        fmt::format("micro-batch {} runs in {} replicas of the model, not in one", m, times[m]);
    throw Disproof{std::move(e)};
  }
}

void Orders::check_lane(std::size_t lane) {
  std::vector<std::int32_t> at((3 * chunks_ + 4 * transfers_) * micro_batches_, -1);
  const std::vector<ScheduleItem>& items = order(lane);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ScheduleItem& item = items[i];
    ++counts_.passes;
    if (!covers(lane, stage_of(item)))
      fail("belongs to devices that are not this lane's", lane, &item);
    std::int32_t& place =
        at[slot(item.phase, item.chunk, static_cast<std::size_t>(item.micro_batch))];
    if (place >= 0) fail("stands twice in the order", lane, &item);
    place = static_cast<std::int32_t>(i);
    const int chunk = is_pass(item.phase)
                          ? item.chunk
                          : program_.transfers[static_cast<std::size_t>(item.chunk)].from_chunk;
    const int replica = plan_.chunks[static_cast<std::size_t>(chunk)].replica;
    if (!due_[replica][static_cast<std::size_t>(item.micro_batch)]) {
      fail("is a micro-batch of another replica", lane, &item);
    }
  }
  const auto first_of = [&](Phase phase, int index, std::size_t m) {
    return at[slot(phase, index, m)];
  };
  const auto require = [&](Phase phase, int index, std::size_t m, const OrderEvent& before) {
    const std::int32_t here = first_of(phase, index, m);
    const std::int32_t there = first_of(before.phase, before.index, m);
    if (here < 0 || (there >= 0 && there < here)) return;
    const ScheduleItem item{phase, index, static_cast<int>(m)};
    const ScheduleItem needed{before.phase, before.index, static_cast<int>(m)};
    fail(fmt::format("comes before what it needs: {}", item_text(program_, needed)), lane, &item,
         {item_text(program_, item), item_text(program_, needed)});
  };
  const auto once = [&](Phase phase, int index, std::size_t m) {
    if (first_of(phase, index, m) >= 0) return;
    const ScheduleItem item{phase, index, static_cast<int>(m)};
    fail("is missing from the order", lane, &item);
  };
  for (std::size_t c = 0; c < chunks_; ++c) {
    const int chunk = static_cast<int>(c);
    if (!covers(lane, stage(chunk))) continue;
    const std::vector<bool>& due = due_[plan_.chunks[c].replica];
    for (std::size_t m = 0; m < micro_batches_; ++m) {
      if (!due[m]) continue;
      once(Phase::kForward, chunk, m);
      for (const OrderEvent& e : needs_.forward[c]) require(Phase::kForward, chunk, m, e);
      if (program_.chunks[c].backward || has_backward_[c]) {
        once(Phase::kBackward, chunk, m);
        require(Phase::kBackward, chunk, m, {Phase::kForward, chunk});
        for (const OrderEvent& e : needs_.backward[c]) require(Phase::kBackward, chunk, m, e);
      }
      if (has_weight_[c]) once(Phase::kWeight, chunk, m);
      require(Phase::kWeight, chunk, m, {Phase::kBackward, chunk});
    }
  }
  for (std::size_t t = 0; t < transfers_; ++t) {
    const Transfer& transfer = program_.transfers[t];
    const int index = static_cast<int>(t);
    const std::vector<bool>& due =
        due_[plan_.chunks[static_cast<std::size_t>(transfer.from_chunk)].replica];
    for (std::size_t m = 0; m < micro_batches_; ++m) {
      if (!due[m]) continue;
      if (covers(lane, stage(transfer.from_chunk))) {
        once(Phase::kSend, index, m);
        once(Phase::kSendWait, index, m);
        require(Phase::kSendWait, index, m, {Phase::kSend, index});
        for (const OrderEvent& e : needs_.send[t]) require(Phase::kSend, index, m, e);
      }
      if (covers(lane, stage(transfer.to_chunk))) {
        once(Phase::kReceive, index, m);
        once(Phase::kReceiveWait, index, m);
        require(Phase::kReceiveWait, index, m, {Phase::kReceive, index});
      }
    }
  }
}

// Between two lanes messages are not told apart but by their order.
void Orders::check_messages() {
  std::map<std::pair<int, int>, std::vector<ScheduleItem>> sent, received;
  for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
    const int lane = static_cast<int>(l);
    for (const ScheduleItem& item : order(l)) {
      if (item.phase != Phase::kSend && item.phase != Phase::kReceive) continue;
      const Transfer& t = program_.transfers[static_cast<std::size_t>(item.chunk)];
      const bool send = item.phase == Phase::kSend;
      for (int peer : lanes_of_stage(stage(send ? t.to_chunk : t.from_chunk))) {
        if (peer == lane) continue;
        if (send) {
          sent[{lane, peer}].push_back(item);
        } else {
          received[{peer, lane}].push_back(item);
        }
      }
    }
  }
  for (const auto& [pair, out] : sent) {
    const std::vector<ScheduleItem>& in = received[pair];
    for (std::size_t i = 0; i < std::max(out.size(), in.size()); ++i) {
      if (i < out.size() && i < in.size() && out[i].chunk == in[i].chunk &&
          out[i].micro_batch == in[i].micro_batch) {
        continue;
      }
      const ScheduleItem& odd = i < out.size() ? out[i] : in[i];
      std::vector<std::string> both;
      if (i < out.size())
        both.push_back(fmt::format("lane {}: {}", pair.first, item_text(program_, out[i])));
      if (i < in.size())
        both.push_back(fmt::format("lane {}: {}", pair.second, item_text(program_, in[i])));
      fail(fmt::format("message {} from lane {} to lane {} is another one at the two ends", i,
                       pair.first, pair.second),
           static_cast<std::size_t>(i < out.size() ? pair.first : pair.second), &odd,
           std::move(both));
    }
  }
}

void Orders::deadlock(const std::vector<std::size_t>& at, const std::vector<int>& waits_for) const {
  std::size_t lane = 0;
  while (at[lane] == order(lane).size()) ++lane;
  // Every lane that has not ended waits for one that has not either: walk until one comes again.
  std::vector<bool> seen(at.size());
  while (!seen[lane]) {
    seen[lane] = true;
    lane = static_cast<std::size_t>(waits_for[lane]);
  }
  std::vector<std::string> circle;
  const std::size_t start = lane;
  do {
    circle.push_back(fmt::format("lane {} waits for lane {}: {}", lane, waits_for[lane],
                                 item_text(program_, order(lane)[at[lane]])));
    lane = static_cast<std::size_t>(waits_for[lane]);
  } while (lane != start);
  const ScheduleItem& item = order(start)[at[start]];
  const std::string message = fmt::format("deadlock of {} lanes", circle.size());
  fail(message, start, &item, std::move(circle));
}

// Sends and receives are issued at once; waiting for one ends when the other end has issued its
// part; passes of a stage on several lanes start together.
void Orders::play() {
  const std::size_t lanes = program_.lanes.size();
  std::vector<std::size_t> at(lanes);
  std::vector<int> waits_for(lanes, -1);
  std::vector<std::int32_t> issued(2 * transfers_ * micro_batches_);
  std::vector<std::vector<std::size_t>> waiting(lanes);  // Lanes to look at again.
  std::vector<std::size_t> ready;
  for (std::size_t l = 0; l < lanes; ++l) ready.push_back(l);
  // The lane that item waits for, or -1.
  const auto blocker = [&](std::size_t lane, const ScheduleItem& item) -> int {
    if (is_pass(item.phase)) {
      for (int other : lanes_of_stage(stage(item.chunk))) {
        const auto o = static_cast<std::size_t>(other);
        if (o == lane) continue;
        if (at[o] >= order(o).size() || !(order(o)[at[o]] == item)) return other;
      }
      return -1;
    }
    if (item.phase == Phase::kSend || item.phase == Phase::kReceive) return -1;
    const Transfer& t = program_.transfers[static_cast<std::size_t>(item.chunk)];
    const bool send = item.phase == Phase::kSendWait;
    const std::vector<int>& peers = lanes_of_stage(stage(send ? t.to_chunk : t.from_chunk));
    const std::size_t key = (static_cast<std::size_t>(item.chunk) * micro_batches_ +
                             static_cast<std::size_t>(item.micro_batch)) *
                                2 +
                            (send ? 1 : 0);
    if (issued[key] == static_cast<std::int32_t>(peers.size())) return -1;
    const ScheduleItem wanted{send ? Phase::kReceive : Phase::kSend, item.chunk, item.micro_batch};
    for (int peer : peers) {
      const auto& list = order(static_cast<std::size_t>(peer));
      const auto from =
          list.begin() + static_cast<std::ptrdiff_t>(at[static_cast<std::size_t>(peer)]);
      if (std::find(from, list.end(), wanted) != list.end()) return peer;
    }
    return static_cast<int>(lane);
  };
  const auto wake = [&](std::size_t lane) {
    for (std::size_t w : waiting[lane]) ready.push_back(w);
    waiting[lane].clear();
  };
  while (!ready.empty()) {
    const std::size_t lane = ready.back();
    ready.pop_back();
    bool moved = false;
    while (at[lane] < order(lane).size()) {
      const ScheduleItem& item = order(lane)[at[lane]];
      const int other = blocker(lane, item);
      if (other >= 0) {
        waits_for[lane] = other;
        waiting[static_cast<std::size_t>(other)].push_back(lane);
        break;
      }
      moved = true;
      if (is_pass(item.phase)) {
        for (int o : lanes_of_stage(stage(item.chunk))) {
          ++at[static_cast<std::size_t>(o)];
          if (static_cast<std::size_t>(o) != lane) {
            ready.push_back(static_cast<std::size_t>(o));
            wake(static_cast<std::size_t>(o));
          }
        }
        continue;
      }
      if (item.phase == Phase::kSend || item.phase == Phase::kReceive) {
        // Counted for the other end: its wait looks at this side.
        ++issued[(static_cast<std::size_t>(item.chunk) * micro_batches_ +
                  static_cast<std::size_t>(item.micro_batch)) *
                     2 +
                 (item.phase == Phase::kReceive ? 1 : 0)];
      }
      ++at[lane];
    }
    if (moved) wake(lane);
  }
  for (std::size_t l = 0; l < lanes; ++l) {
    if (at[l] < order(l).size()) deadlock(at, waits_for);
  }
}

}  // namespace

void follow_orders(const Program& program, const Plan& plan, const OrderNeeds& needs,
                   VerifyCounts& counts) {
  Orders(program, plan, needs, counts).run();
}

void ProgramReplay::follow_orders() const {
  meshwright::follow_orders(program_, plan_, needs_, counts_);
}

}  // namespace meshwright
