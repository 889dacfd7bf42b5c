#include "sim/simulate.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace meshwright {
namespace {

struct ChunkTime {
  Seconds forward, backward;  // Duration of one pass.
  StageTime forward_parts, backward_parts;
  Seconds send_forward, send_backward;  // Transfer to the next / previous chunk's stage.
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
  void execute(bool keep_events, Timeline& timeline);
  void finish_step(Timeline& timeline);
  StageTime parts_of(const BlockTime& block, const Efficiency& e, Seconds& duration) const;

  const Program& program_;
  const Plan& plan_;
  Pricer& pricer_;
  std::vector<ChunkTime> chunks_;
  std::vector<Seconds> stage_end_;
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
  std::map<std::pair<int, int>, std::pair<BlockTime, BlockTime>>
      blocks;  // (stage's first device, segment)
  const auto add = [](BlockTime& total, const BlockTime& part) {
    total.serial += part.serial;
    total.host += part.host;
    total.gather += part.gather;
    total.scatter += part.scatter;
    for (std::size_t i = 0; i < total.by_purpose.size(); ++i)
      total.by_purpose[i] += part.by_purpose[i];
  };
  for (std::size_t c = 0; c < program_.chunks.size(); ++c) {
    const ChunkProgram& chunk = program_.chunks[c];
    const Mesh& mesh = plan_.stages[static_cast<std::size_t>(chunk.stage)].mesh;
    const Efficiency& e = pricer_.efficiency(mesh);
    BlockTime forward, backward;
    for (int s : chunk.segments) {
      const auto [it, fresh] = blocks.try_emplace({mesh.first_device, s});
      if (fresh) {
        const SegmentProgram& segment = program_.segments[static_cast<std::size_t>(s)];
        it->second = {pricer_.block(segment.forward, mesh), pricer_.block(segment.backward, mesh)};
      }
      add(forward, it->second.first);
      add(backward, it->second.second);
    }
    ChunkTime time;
    time.forward_parts = parts_of(forward, e, time.forward);
    time.backward_parts = parts_of(backward, e, time.backward);
    const auto transfer = [&](std::size_t from, std::size_t to, Bytes bytes) {
      const Mesh& source = plan_.stages[static_cast<std::size_t>(program_.chunks[from].stage)].mesh;
      const Mesh& target = plan_.stages[static_cast<std::size_t>(program_.chunks[to].stage)].mesh;
      const int offset = target.first_device - source.first_device;
      return offset == 0 ? Seconds(0) : pricer_.peer(bytes, source, offset);
    };
    if (c + 1 < program_.chunks.size()) time.send_forward = transfer(c, c + 1, chunk.send);
    if (c > 0) time.send_backward = transfer(c, c - 1, program_.chunks[c - 1].send);
    chunks_.push_back(time);
  }
}

void Simulation::execute(bool keep_events, Timeline& timeline) {
  const std::size_t stages = program_.stages.size();
  const std::size_t chunk_count = program_.chunks.size();
  const auto micro = static_cast<std::size_t>(program_.micro_batches);
  constexpr double kNever = -1;
  // Arrival of the input of (chunk, micro-batch), forward and backward.
  std::vector<double> ready_forward(chunk_count * micro, kNever);
  std::vector<double> ready_backward(chunk_count * micro, kNever);
  for (std::size_t m = 0; m < micro; ++m) ready_forward[m] = 0;
  std::vector<double> sent_forward = ready_forward;  // When the sender was done.
  std::vector<double> sent_backward = ready_backward;

  std::vector<std::size_t> next(stages, 0);
  std::vector<double> clock(stages, 0);
  std::map<std::pair<int, int>, double> link_free;  // (from stage, to stage)
  stage_end_.assign(stages, Seconds(0));
  last_backward_.assign(stages, Seconds(0));
  first_forward_.assign(stages, Seconds(0));
  timeline.stages.resize(stages);
  if (keep_events) timeline.events.resize(stages);

  const auto send = [&](std::size_t from, std::size_t to, double at, Seconds duration) {
    const int a = program_.chunks[from].stage;
    const int b = program_.chunks[to].stage;
    if (a == b) return at;
    double& free = link_free[{a, b}];
    const double start = std::max(at, free);
    free = start + duration.value;
    return free;
  };

  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t s = 0; s < stages; ++s) {
      const std::vector<ScheduleItem>& order = program_.lanes[s].order;
      while (next[s] < order.size()) {
        const ScheduleItem& item = order[next[s]];
        const auto c = static_cast<std::size_t>(item.chunk);
        const std::size_t slot = c * micro + static_cast<std::size_t>(item.micro_batch);
        const bool forward = item.phase == Phase::kForward;
        const double ready = forward ? ready_forward[slot] : ready_backward[slot];
        if (ready == kNever) break;
        const ChunkTime& time = chunks_[c];
        const double start = std::max(clock[s], ready);
        // Of a wait, what the message itself took is communication, the rest is bubble.
        const double sent = forward ? sent_forward[slot] : sent_backward[slot];
        const double on_the_wire = std::max(0.0, std::min(start - clock[s], ready - sent));
        timeline.stages[s].spent[static_cast<std::size_t>(Purpose::kPipeline)] +=
            Seconds(on_the_wire);
        const Seconds duration = forward ? time.forward : time.backward;
        const double end = start + duration.value;
        clock[s] = end;
        StageTime& parts = timeline.stages[s];
        const StageTime& spent = forward ? time.forward_parts : time.backward_parts;
        for (std::size_t i = 0; i < parts.spent.size(); ++i) parts.spent[i] += spent.spent[i];
        parts.host += spent.host;
        if (keep_events) timeline.events[s].push_back({item, Seconds(start), Seconds(end)});
        if (forward) {
          if (first_forward_[s].value == 0) first_forward_[s] = duration;
          if (c + 1 < chunk_count) {
            sent_forward[slot + micro] = end;
            ready_forward[slot + micro] = send(c, c + 1, end, time.send_forward);
          } else {
            sent_backward[slot] = ready_backward[slot] = end;
          }
        } else {
          last_backward_[s] = duration;
          if (c > 0) {
            sent_backward[slot - micro] = end;
            ready_backward[slot - micro] = send(c, c - 1, end, time.send_backward);
          }
        }
        ++next[s];
        moved = true;
      }
    }
  }
  for (std::size_t s = 0; s < stages; ++s) {
    MW_CHECK(next[s] == program_.lanes[s].order.size(), "the schedule deadlocks");
    stage_end_[s] = Seconds(clock[s]);
  }
}

void Simulation::finish_step(Timeline& timeline) {
  const std::size_t stages = program_.stages.size();
  Seconds reduced;
  std::vector<Seconds> exposed(stages), optimizer(stages), gather(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    const Mesh& mesh = plan_.stages[s].mesh;
    const Efficiency& e = pricer_.efficiency(mesh);
    const StepTime step = step_time(program_.stages[s].step, mesh, pricer_);
    // All chunks of the stage finish their last micro-batch together; only that pass can hide
    // reductions.
    exposed[s] = step.reduce - std::min(step.reduce * e.gradient_overlap, last_backward_[s]);
    optimizer[s] = step.optimizer;
    gather[s] = step.gather - std::min(step.gather * e.update_overlap, first_forward_[s]);
    reduced = std::max(reduced, stage_end_[s] + exposed[s]);
  }
  // Gradient clipping makes every stage wait for the slowest before the optimizer.
  Seconds tail, fixed;
  for (std::size_t s = 0; s < stages; ++s) {
    tail = std::max(tail, optimizer[s] + gather[s]);
    fixed = std::max(fixed, pricer_.efficiency(plan_.stages[s].mesh).step_fixed);
  }
  timeline.step = reduced + tail + fixed;
  for (std::size_t s = 0; s < stages; ++s) {
    StageTime& parts = timeline.stages[s];
    parts.spent[static_cast<std::size_t>(Purpose::kGradient)] += exposed[s];
    parts.spent[static_cast<std::size_t>(Purpose::kOptimizer)] += optimizer[s];
    parts.spent[static_cast<std::size_t>(Purpose::kParameterGather)] += gather[s];
    parts.host += fixed;
    Seconds busy = parts.host;
    for (Seconds t : parts.spent) busy += t;
    parts.bubble = std::max(timeline.step - busy, Seconds(0));
  }
}

Timeline Simulation::run(bool keep_events) {
  Timeline timeline;
  price_chunks();
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
