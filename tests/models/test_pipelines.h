#pragma once

#include <string_view>

#include "plan/lanes.h"
#include "plan/plan.h"
#include "plan/schedule.h"

namespace meshwright {

/// A plan and a program of equal chunks that a schedule runs on `shape`: stage i on device i,
/// chunks of all devices on one more stage over all of them. Every chunk is one segment without
/// instructions; orders are filled in, with messages of `send` bytes between the chunks of a
/// replica.
struct TestPipeline {
  ScheduleShape shape;
  Plan plan;
  Program program;
  Bytes message;

  TestPipeline(const Schedule& schedule, const ScheduleShape& wanted, double send = 0)
      : shape(wanted), message(send) {
    plan.schedule = schedule.name;
    plan.micro_batches = shape.micro_batches;
    for (int s = 0; s < shape.stages; ++s) {
      plan.stages.emplace_back();
      plan.stages.back().mesh.first_device = s;
    }
    const int all = shape.everywhere.empty() ? 0 : shape.stages == 1 ? 0 : shape.stages;
    if (all > 0) {
      plan.stages.emplace_back();
      plan.stages.back().mesh.axes = {{"all", shape.stages, 1}};
    }
    const int chunks = shape.chunks();
    for (int c = 0; c < chunks * schedule.replicas; ++c) {
      const int lane = schedule.stage_of(shape, c);
      const int stage = lane == kEverywhere ? all : lane;
      plan.chunks.push_back({stage, c % chunks, c % chunks + 1, c / chunks});
      ChunkProgram chunk;
      chunk.stage = stage;
      chunk.first_segment = c % chunks;
      chunk.segments = {0};
      chunk.backward = shape.has_backward(c);
      if (schedule.recycles) chunk.backward = c >= chunks - shape.stages;
      program.chunks.push_back(std::move(chunk));
    }
    program.segments.emplace_back();
    program.stages.resize(plan.stages.size());
    program.micro_batches = shape.micro_batches;
  }
  /// Every chunk sends to the next one of its replica (and slice), gradients back.
  void fill() {
    const auto chunk = [&](int c) -> const ChunkProgram& {
      return program.chunks[static_cast<std::size_t>(c)];
    };
    const bool chained = !program.transfers.empty();
    for (const auto& [from, to] : chain_of(find_schedule(plan.schedule), shape)) {
      if (chained || chunk(from).stage == chunk(to).stage) continue;
      program.transfers.push_back({from, to, false, {}, true, message});
      if (chunk(from).backward && chunk(to).backward)
        program.transfers.push_back({to, from, true, {}, true, message});
    }
    fill_lanes(plan, program);
  }
};

}  // namespace meshwright
