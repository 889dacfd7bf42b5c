// The set-up of a rank and its step: the order of its lane, then the optimizer.
#include "engine/executor.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/executor_state.h"

namespace meshwright {

Executor::Impl::Impl(const Program& program, const Plan& the_plan, const Graph& the_graph,
                     const std::vector<Segment>& the_segments, Comm& the_comm,
                     const Feeds& the_feeds, const ExecutorSettings& the_settings,
                     RunObserver* the_observer)
    : p(program),
      plan(the_plan),
      graph(the_graph),
      segments(the_segments),
      comm(the_comm),
      feeds(the_feeds),
      settings(the_settings),
      observer(the_observer),
      samples(the_plan.global_batch / the_plan.micro_batches),
      tables(the_graph),
      device(the_comm.rank()) {
  losses.assign(graph.values.size(), true);
  for (const Op& op : graph.ops) {
    for (ValueId id : op.inputs) losses[id.index()] = false;
  }
  const std::vector<bool> trained = requires_gradient(graph);
  for (std::size_t v = 0; v < losses.size(); ++v) {
    losses[v] = losses[v] && trained[v] && graph.values[v].kind == ValueKind::kActivation;
  }
  for (const Stage& s : plan.stages) coordinates.push_back(coordinates_of(s.mesh, device));
  for (std::size_t l = 0; l < p.lanes.size(); ++l) {
    if (coordinates_of(p.lanes[l].mesh, device)) lane = static_cast<int>(l);
  }
  for (std::size_t c = 0; c < p.chunks.size(); ++c) {
    const ChunkProgram& chunk_program = p.chunks[c];
    const int s = chunk_program.stage;
    for (std::size_t i = 0; i < chunk_program.segments.size(); ++i) {
      const SegmentProgram& segment =
          p.segments[static_cast<std::size_t>(chunk_program.segments[i])];
      for (const ParameterShard& shard : segment.parameters) {
        const ValueId id = actual(static_cast<int>(c), i, shard.value);
        const auto [it, fresh] = first_stage.try_emplace(id.value, s);
        if (!fresh) it->second = std::min(it->second, s);
      }
    }
    if (!holds(s)) continue;
    const auto& here = *coordinates[static_cast<std::size_t>(s)];
    for (std::size_t i = 0; i < chunk_program.segments.size(); ++i) {
      const int which = chunk_program.segments[i];
      const SegmentProgram& segment = p.segments[static_cast<std::size_t>(which)];
      if (!segments_ready.contains({which, s})) {
        segments_ready.emplace(std::pair(which, s), prepare_segment(segment, graph, tables, samples,
                                                                    stage(s).mesh, here));
      }
      for (std::int32_t b : segment.arguments) {
        const ValueId id =
            actual(static_cast<int>(c), i, segment.buffers[static_cast<std::size_t>(b)].value);
        if (graph.value(id).kind != ValueKind::kActivation) continue;
        ++uses[{s, replica(static_cast<int>(c)), id.value}];
      }
      for (const ParameterShard& shard : segment.parameters) {
        const ValueId id = actual(static_cast<int>(c), i, shard.value);
        const auto [it, fresh] = parameters.try_emplace({s, id.value});
        StageParameter& held = it->second;
        // Where some segment trains it, that one's buffers are the step's.
        if (!fresh && (held.shard->accumulated >= 0 || shard.accumulated < 0)) continue;
        held.value = id;
        held.program = which;
        held.shard = &shard;
        if (!fresh) continue;
        held.rest = fed_tensor(feeds, id, type(id),
                               prepared(which, s).buffers[static_cast<std::size_t>(shard.buffer)],
                               0, 0, settings.numerics);
      }
    }
  }
  for (const Transfer& t : p.transfers) {
    const int from = chunk(t.from_chunk).stage, to = chunk(t.to_chunk).stage;
    std::vector<LocalTransfer>& items = transfers.emplace_back();
    for (const Transfer::Item& item : t.items) {
      if (!t.gradient && holds(from)) ++uses[{from, replica(t.from_chunk), item.value.value}];
      items.push_back(local_transfer(type(item.value), item, t.aligned, stage(from).mesh,
                                     stage(to).mesh, device));
    }
  }
  for (std::size_t s = 0; s < p.stages.size(); ++s) {
    if (!holds(static_cast<int>(s))) continue;
    for (const Instr& instr : p.stages[s].step) {
      if (instr.kind != InstrKind::kOptimizer) continue;
      const auto out = p.stages[s].out(instr);
      for (auto& [key, held] : parameters) {
        if (key.first != static_cast<int>(s) || held.shard->accumulated < 0) continue;
        for (const StageProgram::Operand& o : out) {
          if (o.segment != held.program) continue;
          const Buffer& b = described(key.first, o.segment, o.buffer);
          if (b.value != held.shard->value) continue;
          held.state_buffer = o.buffer;
          const LocalBuffer region =
              local_buffer(type(held.value), b, stage(key.first).mesh, *coordinates[s]);
          // The optimizer's own copy, at the run's best precision.
          Numerics precise = settings.numerics;
          precise.compute = precise.precise;
          held.state =
              start_state(plan.training.optimizer,
                          fed_tensor(feeds, held.value, type(held.value), region, 0, 0, precise),
                          precise.precise);
        }
      }
    }
  }
}

ValueId Executor::Impl::actual(int c, std::size_t position, ValueId id) {
  const ChunkProgram& chunk_program = chunk(c);
  const int program = chunk_program.segments[position];
  const int segment = chunk_program.first_segment + static_cast<int>(position);
  auto& map = names[{program, segment}];
  if (map.empty()) {
    const Segment& from =
        segments[static_cast<std::size_t>(p.segments[static_cast<std::size_t>(program)].segment)];
    const Segment& to = segments[static_cast<std::size_t>(segment)];
    for (int i = 0; i < from.last_op - from.first_op; ++i) {
      const Op& a = graph.ops[static_cast<std::size_t>(from.first_op + i)];
      const Op& b = graph.ops[static_cast<std::size_t>(to.first_op + i)];
      for (std::size_t k = 0; k < a.inputs.size(); ++k) map[a.inputs[k].value] = b.inputs[k];
      for (std::size_t k = 0; k < a.outputs.size(); ++k) map[a.outputs[k].value] = b.outputs[k];
    }
  }
  return map.at(id.value);
}

std::uint64_t Executor::Impl::draw_key_of(const Op& op) const {
  return draw_key(draw_key(settings.seed, op.name), static_cast<std::uint64_t>(current_step));
}

std::vector<double> Executor::Impl::sum_over_ranks(std::vector<double> mine) {
  const std::int64_t before = comm.bytes_sent();
  const auto numbers = numbers_of_all(comm, mine);
  std::fill(mine.begin(), mine.end(), 0);
  for (const std::vector<double>& theirs : numbers) {
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
  }
  control_bytes += comm.bytes_sent() - before;
  return mine;
}

Executor::Executor(const Program& program, const Plan& plan, const Graph& graph,
                   const std::vector<Segment>& segments, Comm& comm, const Feeds& feeds,
                   const ExecutorSettings& settings, RunObserver* observer)
    : impl_(new Impl(program, plan, graph, segments, comm, feeds, settings, observer)) {}

Executor::~Executor() = default;

StepResult Executor::step(std::int64_t step) {
  Impl& e = *impl_;
  e.current_step = step;
  e.loss = 0;
  const std::int64_t sent = e.comm.bytes_sent(), control = e.control_bytes;
  if (e.lane >= 0) {
    for (const ScheduleItem& item : e.p.lanes[static_cast<std::size_t>(e.lane)].order) {
      if (is_pass(item.phase)) {
        e.pass(item.phase, item.chunk, item.micro_batch);
      } else {
        e.message(item);
      }
    }
  }
  e.runs.clear();
  e.values.clear();
  e.gradients.clear();
  StepResult result;
  e.run_steps(result);
  e.program_bytes += e.comm.bytes_sent() - sent - (e.control_bytes - control);
  return result;
}

std::vector<HeldState> Executor::states() {
  std::vector<HeldState> list;
  for (auto& [key, held] : impl_->parameters) {
    if (held.state_buffer < 0) continue;
    const auto s = static_cast<std::size_t>(key.first);
    const Buffer& b = impl_->described(key.first, held.program, held.state_buffer);
    const Mesh& mesh = impl_->stage(key.first).mesh;
    list.push_back({held.value, impl_->type(held.value),
                    local_buffer(impl_->type(held.value), b, mesh, *impl_->coordinates[s]),
                    is_owner(b, mesh, *impl_->coordinates[s]) &&
                        impl_->first_stage.at(held.value.value) == key.first,
                    &held.state});
  }
  return list;
}

std::vector<Executor::HeldParameter> Executor::parameters() const {
  std::vector<HeldParameter> list;
  for (auto& [key, held] : impl_->parameters) {
    const auto s = static_cast<std::size_t>(key.first);
    const Buffer& b = impl_->described(key.first, held.program, held.shard->buffer);
    const Mesh& mesh = impl_->stage(key.first).mesh;
    list.push_back({held.value, impl_->type(held.value),
                    local_buffer(impl_->type(held.value), b, mesh, *impl_->coordinates[s]),
                    is_owner(b, mesh, *impl_->coordinates[s]) &&
                        impl_->first_stage.at(held.value.value) == key.first,
                    held.rest});
  }
  return list;
}

at::ScalarType Executor::precise() const { return impl_->settings.numerics.precise; }

int Executor::element_bytes() const {
  return static_cast<int>(c10::elementSize(impl_->settings.numerics.compute));
}

std::int64_t Executor::bytes_sent() const { return impl_->program_bytes; }

}  // namespace meshwright
