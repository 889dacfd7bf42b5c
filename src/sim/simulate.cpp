#include "sim/simulate.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "base/error.h"
#include "plan/lanes.h"

namespace meshwright {
namespace {

// Forward, backward, weight.
constexpr std::size_t kPasses = 3;

struct ChunkTime {
  std::array<Seconds, kPasses> duration;
  std::array<StageTime, kPasses> parts;
};

// The part of overlapped traffic that compute does not hide.
Seconds expose(Seconds serial, double share, Purpose purpose, Seconds traffic, StageTime& parts) {
  const Seconds hidden = std::min(serial, traffic * share);
  const Seconds exposed = traffic - hidden;
  parts.spent[static_cast<std::size_t>(purpose)] += exposed;
  return exposed;
}

class Simulation {
 public:
  Simulation(const Program& program, const Plan& plan, Pricer& pricer)
      : program_(program), plan_(plan), pricer_(pricer) {}

  Timeline run(bool keep_events);

 private:
  void price_chunks();
  void price_transfers();
  void execute(bool keep_events, Timeline& timeline);
  void finish_step(Timeline& timeline);
  StageTime parts_of(const BlockTime& block, const Efficiency& e, Seconds& duration) const;

  const Program& program_;
  const Plan& plan_;
  Pricer& pricer_;
  std::vector<ChunkTime> chunks_;
  std::vector<Seconds> transfers_;
  // Per lane.
  std::vector<Seconds> end_;
  std::vector<Seconds> last_backward_, first_forward_;
};

StageTime Simulation::parts_of(const BlockTime& block, const Efficiency& e,
                               Seconds& duration) const {
  StageTime parts;
  Seconds visible;
  for (int p = 0; p < kPurposeCount; ++p) {
    const auto i = static_cast<std::size_t>(p);
    const auto purpose = static_cast<Purpose>(p);
    if (purpose == Purpose::kParameterGather || purpose == Purpose::kGradient) continue;
    parts.spent[i] = block.by_purpose[i];
    visible += block.by_purpose[i];
  }
  // What ring attention hid is not spent.
  const Seconds hidden_ring = visible + block.host - block.serial;
  parts.spent[static_cast<std::size_t>(Purpose::kContext)] -= hidden_ring;
  duration = block.serial + e.micro_batch_fixed;
  duration +=
      expose(block.serial, e.gather_overlap, Purpose::kParameterGather, block.gather, parts);
  duration += expose(block.serial, e.gather_overlap, Purpose::kGradient, block.scatter, parts);
  parts.host = e.micro_batch_fixed + block.host;
  return parts;
}

void Simulation::price_chunks() {
  // By the stage's first device and size, and the segment.
  std::map<std::array<int, 3>, std::array<BlockTime, kPasses>> blocks;
  const auto add = [](BlockTime& total, const BlockTime& part) {
    total.serial += part.serial;
    total.host += part.host;
    total.gather += part.gather;
    total.scatter += part.scatter;
    for (std::size_t i = 0; i < total.by_purpose.size(); ++i)
      total.by_purpose[i] += part.by_purpose[i];
  };
  for (const ChunkProgram& chunk : program_.chunks) {
    const Mesh& mesh = plan_.stages[static_cast<std::size_t>(chunk.stage)].mesh;
    const Efficiency& e = pricer_.efficiency(mesh);
    std::array<BlockTime, kPasses> total;
    bool split = false;
    for (int s : chunk.segments) {
      const SegmentProgram& segment = program_.segments[static_cast<std::size_t>(s)];
      const auto [it, fresh] = blocks.try_emplace({mesh.first_device, mesh.device_count(), s});
      if (fresh) {
        it->second = {pricer_.block(segment.forward, mesh), pricer_.block(segment.backward, mesh),
                      pricer_.block(segment.weight, mesh)};
      }
      split |= !segment.weight.empty();
      for (std::size_t pass = 0; pass < kPasses; ++pass) add(total[pass], it->second[pass]);
    }
    ChunkTime time;
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      if (pass == 2 && !split) continue;
      time.parts[pass] = parts_of(total[pass], e, time.duration[pass]);
    }
    chunks_.push_back(time);
  }
}

void Simulation::price_transfers() {
  const auto mesh_of = [&](int chunk) -> const Mesh& {
    const int stage = program_.chunks[static_cast<std::size_t>(chunk)].stage;
    return plan_.stages[static_cast<std::size_t>(stage)].mesh;
  };
  const auto last_device = [](const Mesh& mesh) {
    int last = mesh.first_device;
    for (const MeshAxis& a : mesh.axes) last += (a.size - 1) * a.stride;
    return last;
  };
  for (const Transfer& t : program_.transfers) {
    const Mesh& from = mesh_of(t.from_chunk);
    const Mesh& to = mesh_of(t.to_chunk);
    int offset = to.first_device - from.first_device;
    if (from.device_count() == to.device_count()) {
      transfers_.push_back(offset == 0 ? Seconds(0) : pricer_.peer(t.bytes, from, offset));
      continue;
    }
    // Between a stage and one that lies over it: as far as their devices are apart, seen from the
    // smaller one, whose links all messages share.
    const Mesh& smaller = from.device_count() < to.device_count() ? from : to;
    const Mesh& larger = from.device_count() < to.device_count() ? to : from;
    offset = larger.first_device - smaller.first_device;
    if (offset == 0) offset = last_device(larger) - smaller.first_device;
    transfers_.push_back(pricer_.peer(t.bytes, smaller, offset));
  }
}

void Simulation::execute(bool keep_events, Timeline& timeline) {
  const std::size_t lanes = program_.lanes.size();
  const auto micro = static_cast<std::size_t>(program_.micro_batches);
  const std::vector<std::vector<int>> covered = lanes_of_stages(program_.lanes);
  const auto lanes_of_chunk = [&](int chunk) -> const std::vector<int>& {
    const int stage = program_.chunks[static_cast<std::size_t>(chunk)].stage;
    return covered[static_cast<std::size_t>(stage)];
  };

  constexpr double kNever = -1;
  constexpr std::size_t kNothing = SIZE_MAX;
  struct Message {
    double sent = kNever;     // When the last lane of the sender was done.
    double arrived = kNever;  // Same, plus the wire.
  };
  std::vector<Message> messages(program_.transfers.size() * micro);
  std::vector<std::uint8_t> passed(program_.chunks.size() * micro, 0);  // Bits of phases done.
  std::vector<int> senders(program_.transfers.size(), 0);  // Lanes that have issued a send.
  std::vector<double> link_free;                           // Per pair of stages with messages.
  std::vector<int> link_of;                                // Per transfer.
  {
    std::map<std::pair<int, int>, int> links;
    for (const Transfer& t : program_.transfers) {
      const auto stage_of = [&](int c) {
        return program_.chunks[static_cast<std::size_t>(c)].stage;
      };
      const auto [it, fresh] = links.try_emplace({stage_of(t.from_chunk), stage_of(t.to_chunk)},
                                                 static_cast<int>(links.size()));
      link_of.push_back(it->second);
    }
    link_free.assign(links.size(), 0);
  }

  std::vector<std::size_t> next(lanes, 0);
  std::vector<double> clock(lanes, 0);
  std::vector<std::size_t> waits_for(lanes, kNothing);  // Index of a message.
  std::vector<int> met(program_.chunks.size(), 0);      // Lanes that have come to a shared pass.
  end_.assign(lanes, Seconds(0));
  last_backward_.assign(lanes, Seconds(0));
  first_forward_.assign(lanes, Seconds(0));
  timeline.stages.resize(lanes);
  if (keep_events) timeline.events.resize(lanes);
  std::vector<int> awake;
  for (std::size_t l = lanes; l-- > 0;) awake.push_back(static_cast<int>(l));

  const auto run_pass = [&](std::size_t lane, const ScheduleItem& item, double start) {
    const auto pass = static_cast<std::size_t>(item.phase);
    const ChunkTime& time = chunks_[static_cast<std::size_t>(item.chunk)];
    const Seconds duration = time.duration[pass];
    clock[lane] = start + duration.value;
    StageTime& parts = timeline.stages[lane];
    const StageTime& spent = time.parts[pass];
    for (std::size_t i = 0; i < parts.spent.size(); ++i) parts.spent[i] += spent.spent[i];
    parts.host += spent.host;
    if (keep_events) {
      timeline.events[lane].push_back({item, Seconds(start), Seconds(clock[lane])});
    }
    if (item.phase == Phase::kForward) {
      if (first_forward_[lane].value == 0) first_forward_[lane] = duration;
    } else if (duration.value > 0) {
      last_backward_[lane] = duration;
    }
    ++next[lane];
  };

  // Runs a lane as far as it gets.
  const auto advance = [&](std::size_t lane) {
    const std::vector<ScheduleItem>& order = program_.lanes[lane].order;
    while (next[lane] < order.size()) {
      const ScheduleItem& item = order[next[lane]];
      const auto index = static_cast<std::size_t>(item.chunk);
      const std::size_t slot = index * micro + static_cast<std::size_t>(item.micro_batch);
      switch (item.phase) {
        case Phase::kSendWait:  // Messages are copied out: the sender need not wait.
        case Phase::kReceive:
          ++next[lane];
          break;
        case Phase::kSend: {
          Message& message = messages[slot];
          const Transfer& transfer = program_.transfers[index];
          message.sent = std::max(message.sent, clock[lane]);
          ++next[lane];
          if (++senders[index] < std::ssize(lanes_of_chunk(transfer.from_chunk))) break;
          senders[index] = 0;
          double& free = link_free[static_cast<std::size_t>(link_of[index])];
          free = std::max(message.sent, free) + transfers_[index].value;
          message.arrived = free;
          for (int other : lanes_of_chunk(transfer.to_chunk)) {
            std::size_t& waits = waits_for[static_cast<std::size_t>(other)];
            if (waits != slot) continue;
            waits = kNothing;
            awake.push_back(other);
          }
          break;
        }
        case Phase::kReceiveWait: {
          const Message& message = messages[slot];
          if (message.arrived == kNever) {
            waits_for[lane] = slot;
            return;
          }
          // Of a wait, what the message itself took is communication, the rest is bubble.
          const double start = std::max(clock[lane], message.arrived);
          const double on_the_wire =
              std::max(0.0, std::min(start - clock[lane], message.arrived - message.sent));
          timeline.stages[lane].spent[static_cast<std::size_t>(Purpose::kPipeline)] +=
              Seconds(on_the_wire);
          clock[lane] = start;
          ++next[lane];
          break;
        }
        case Phase::kForward:
        case Phase::kBackward:
        case Phase::kWeight: {
          const std::vector<int>& together = lanes_of_chunk(item.chunk);
          if (together.size() > 1 && ++met[index] < std::ssize(together)) return;
          met[index] = 0;
          const ScheduleItem pass = item;
          const auto bit = static_cast<std::uint8_t>(1u << static_cast<unsigned>(pass.phase));
          MW_CHECK(passed[slot] + 1 == bit,
                   "the schedule deadlocks: a pass before its forward pass");
          passed[slot] = static_cast<std::uint8_t>(passed[slot] | bit);
          if (together.size() == 1) {
            run_pass(lane, pass, clock[lane]);
            break;
          }
          double start = 0;
          for (int other : together)
            start = std::max(start, clock[static_cast<std::size_t>(other)]);
          for (int other : together) {
            const auto l = static_cast<std::size_t>(other);
            const auto& there = program_.lanes[l].order;
            MW_CHECK(next[l] < there.size() && there[next[l]] == pass,
                     "the schedule deadlocks: lanes run a shared stage in different orders");
            run_pass(l, pass, start);
            if (l != lane) awake.push_back(other);
          }
          break;
        }
      }
    }
  };
  while (!awake.empty()) {
    const auto lane = static_cast<std::size_t>(awake.back());
    awake.pop_back();
    advance(lane);
  }
  for (std::size_t l = 0; l < lanes; ++l) {
    MW_CHECK(next[l] == program_.lanes[l].order.size(), "the schedule deadlocks");
    end_[l] = Seconds(clock[l]);
  }
}

void Simulation::finish_step(Timeline& timeline) {
  const std::size_t lanes = program_.lanes.size();
  Seconds reduced;
  std::vector<Seconds> exposed(lanes), optimizer(lanes), gather(lanes);
  for (std::size_t l = 0; l < lanes; ++l) {
    const Efficiency& e = pricer_.efficiency(program_.lanes[l].mesh);
    StepTime step;
    for (int stage : program_.lanes[l].stages) {
      const auto s = static_cast<std::size_t>(stage);
      const StepTime part = step_time(program_.stages[s].step, plan_.stages[s].mesh, pricer_);
      step.reduce += part.reduce;
      step.optimizer += part.optimizer;
      step.gather += part.gather;
    }
    // All chunks of the stage finish their last micro-batch together; only that pass can hide
    // reductions.
    exposed[l] = step.reduce - std::min(step.reduce * e.gradient_overlap, last_backward_[l]);
    optimizer[l] = step.optimizer;
    gather[l] = step.gather - std::min(step.gather * e.update_overlap, first_forward_[l]);
    reduced = std::max(reduced, end_[l] + exposed[l]);
  }
  // Gradient clipping makes every stage wait for the slowest before the optimizer.
  Seconds tail, fixed;
  for (std::size_t l = 0; l < lanes; ++l) {
    tail = std::max(tail, optimizer[l] + gather[l]);
    fixed = std::max(fixed, pricer_.efficiency(program_.lanes[l].mesh).step_fixed);
  }
  timeline.step = reduced + tail + fixed;
  for (std::size_t l = 0; l < lanes; ++l) {
    StageTime& parts = timeline.stages[l];
    parts.spent[static_cast<std::size_t>(Purpose::kGradient)] += exposed[l];
    parts.spent[static_cast<std::size_t>(Purpose::kOptimizer)] += optimizer[l];
    parts.spent[static_cast<std::size_t>(Purpose::kParameterGather)] += gather[l];
    parts.host += fixed;
    Seconds busy = parts.host;
    for (Seconds t : parts.spent) busy += t;
    parts.bubble = std::max(timeline.step - busy, Seconds(0));
  }
}

Timeline Simulation::run(bool keep_events) {
  Timeline timeline;
  price_chunks();
  price_transfers();
  execute(keep_events, timeline);
  finish_step(timeline);
  timeline.memory = program_memory(program_, plan_, pricer_);
  return timeline;
}

}  // namespace

int Timeline::bottleneck() const {
  int best = 0;
  for (std::size_t s = 1; s < stages.size(); ++s) {
    if (stages[s].bubble < stages[static_cast<std::size_t>(best)].bubble)
      best = static_cast<int>(s);
  }
  return best;
}

Timeline simulate(const Program& program, const Plan& plan, Pricer& pricer, bool keep_events) {
  return Simulation(program, plan, pricer).run(keep_events);
}

}  // namespace meshwright
