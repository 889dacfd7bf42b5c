#pragma once

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "engine/collectives.h"
#include "engine/executor.h"
#include "engine/prepared.h"
#include "engine/regions.h"
#include "ops/gradient_flow.h"

// Private to the executor.

namespace meshwright {

/// What autograd recorded of one operator's kernel.
struct Record {
  std::vector<at::Tensor> inputs, outputs;
};

/// One segment's buffers for one micro-batch.
struct SegmentRun {
  std::vector<at::Tensor> buffers;
  std::map<int, Record> records;  ///< By operator.
};

/// A value as a stage holds it for one micro-batch: in one or more forms.
struct HeldValue {
  std::vector<std::pair<LocalBuffer, at::Tensor>> forms;
  int uses = 0;  ///< So far; dropped with the last.
};

/// A parameter of a stage.
struct StageParameter {
  ValueId value;
  int program = 0;  ///< Index into Program::segments whose buffers stand for it in the step.
  const ParameterShard* shard = nullptr;
  at::Tensor rest;                    ///< As segments are given it.
  at::Tensor accumulated;             ///< Undefined before the first micro-batch.
  std::map<int, at::Tensor> buffers;  ///< Of the step.
  int state_buffer = -1;              ///< What the optimizer writes; -1 = nothing.
  OptimizerState state;
};

struct Executor::Impl {
  Impl(const Program& program, const Plan& the_plan, const Graph& the_graph,
       const std::vector<Segment>& the_segments, Comm& the_comm, const Feeds& the_feeds,
       const ExecutorSettings& the_settings, RunObserver* the_observer);

  using Key = std::tuple<int, int, std::int32_t, int>;  // stage, replica, value, micro-batch.

  const Stage& stage(int s) const { return plan.stages[static_cast<std::size_t>(s)]; }
  const ChunkProgram& chunk(int c) const { return p.chunks[static_cast<std::size_t>(c)]; }
  int replica(int c) const { return plan.chunks[static_cast<std::size_t>(c)].replica; }
  const TensorType& type(ValueId id) { return tables.type(id, samples); }
  bool holds(int s) const { return coordinates[static_cast<std::size_t>(s)].has_value(); }
  PreparedSegment& prepared(int program, int s) { return segments_ready.at({program, s}); }
  ValueId actual(int c, std::size_t position, ValueId id);
  std::uint64_t draw_key_of(const Op& op) const;
  std::int64_t first_sample(int micro_batch) const { return micro_batch * samples; }

  // executor_pass.cpp
  void pass(Phase phase, int c, int micro_batch);
  void begin_segment(int c, std::size_t position, int micro_batch, SegmentRun& run);
  void run_list(ListKind list, int c, std::size_t position, int micro_batch, SegmentRun& run);
  void forward(const PreparedInstr& i, const PreparedSegment& s, const Op& op, int micro_batch,
               SegmentRun& run);
  void adjoint(const PreparedInstr& i, const PreparedSegment& s, const Op& op, int micro_batch,
               SegmentRun& run);
  std::vector<at::Tensor> compute(const PreparedInstr& i, const Op& op,
                                  std::span<const at::Tensor> operands, int micro_batch);
  void add_losses(int c, std::size_t position, int micro_batch);
  at::Tensor take_value(const Key& key, const LocalBuffer& form);
  void add_gradient(const Key& key, const at::Tensor& gradient);
  StageParameter& parameter(int s, ValueId id);

  // executor_messages.cpp
  void message(const ScheduleItem& item);
  void send(int t, int micro_batch);
  void receive(int t, int micro_batch);
  void unpack(int t, int micro_batch);

  // executor_step.cpp
  void run_steps(StepResult& result);
  void run_step_instr(int s, std::size_t index, double scale);
  bool stands_for(int s, const StageProgram::Operand& operand, const StageParameter& held) const;
  void run_tie(int t, const std::vector<std::size_t>& at);
  const Buffer& described(int s, int program, int buffer) const;
  double square_of_gradients() const;
  std::vector<double> sum_over_ranks(std::vector<double> values);

  void begin(RunPlace next) {
    next.step = current_step;
    place = next;
    if (observer != nullptr) observer->begin(place);
  }
  void end() {
    if (observer != nullptr) observer->end(place);
  }

  const Program& p;
  const Plan& plan;
  const Graph& graph;
  const std::vector<Segment>& segments;
  Comm& comm;
  const Feeds& feeds;
  const ExecutorSettings& settings;
  RunObserver* observer;
  std::int64_t samples;
  MicroBatchTables tables;
  std::vector<bool> losses;  // Per value: a result whose gradient is fed.
  DeviceId device;
  int lane = -1;
  std::vector<std::optional<std::vector<int>>> coordinates;  // Per stage.
  std::map<std::pair<int, int>, PreparedSegment> segments_ready;
  std::map<std::pair<int, int>, std::map<std::int32_t, ValueId>> names;
  std::vector<std::vector<LocalTransfer>> transfers;                  // Per transfer and item.
  std::map<std::pair<int, std::int32_t>, StageParameter> parameters;  // By stage and value.
  std::map<std::tuple<int, int, std::int32_t>, int> uses;  // Of a value by a stage and replica.

  std::map<std::int32_t, int> first_stage;  // That holds a parameter.
  std::map<std::tuple<int, std::size_t, std::size_t>, LocalCollective> step_collectives;

  std::int64_t current_step = 0;
  RunPlace place;
  double loss = 0;
  // Of the segment that runs: a result's latest buffer, which is its final one.
  std::map<std::int32_t, std::pair<std::int32_t, at::Tensor>> latest_losses;
  std::int64_t control_bytes = 0, program_bytes = 0;
  std::map<std::tuple<int, std::size_t, int>, SegmentRun> runs;
  std::map<Key, HeldValue> values;
  std::map<Key, at::Tensor> gradients;
  struct Mail {
    std::vector<std::unique_ptr<Pending>> pending;
    std::vector<std::vector<at::Tensor>> pieces;  // Per item, in the order of its list.
  };
  std::map<std::pair<int, int>, Mail> outgoing, incoming;
  std::map<std::pair<int, int>, std::vector<std::vector<at::Tensor>>> kept;  // To this rank itself.
};

}  // namespace meshwright
