#include "verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "verify/program_replay.h"

namespace meshwright {

ProgramReplay::ProgramReplay(const Program& program, const Plan& plan, const Graph& graph,
                             const std::vector<Segment>& segments, VerifyCounts& counts)
    : program_(program),
      plan_(plan),
      graph_(graph),
      segments_(segments),
      counts_(counts),
      uses_(graph),
      tables_(graph),
      context_{graph_, uses_, segments_, tables_, plan.global_batch / plan.micro_batches} {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::shared_ptr<SpanTable> table;
    for (std::size_t t = 0; t < s && !table; ++t) {
      if (plan.stages[t].mesh.axes == plan.stages[s].mesh.axes) table = spans_[t];
    }
    if (!table) table = std::make_shared<SpanTable>(plan.stages[s].mesh);
    spans_.push_back(std::move(table));
  }
  // Stages may lie over one another; lanes do not.
  for (const Lane& lane : program.lanes) counts.devices += lane.mesh.device_count();
}

void ProgramReplay::replay_segments() {
  // A program may stand for segments on several meshes; equal meshes need one replay.
  std::map<std::pair<int, SpanTable*>, int> replayed;
  for (std::size_t c = 0; c < program_.chunks.size(); ++c) {
    SpanTable& spans = spans_of(plan_.chunks[c].stage);
    const int devices = spans.mesh().device_count();
    for (int i : program_.chunks[c].segments) {
      const auto [it, fresh] = replayed.try_emplace({i, &spans}, 0);
      if (!fresh) continue;
      SegmentReplay replay(context_, segment_program(i), spans);
      replay.run();
      ++counts_.segments;
      counts_.instructions += replay.instruction_count();
      counts_.device_instructions += replay.instruction_count() * devices;
    }
  }
}

VerifyReport verify(const Program& program, const Plan& plan, const Graph& graph,
                    const std::vector<Segment>& segments) {
  VerifyReport report;
  check_program_indices(program, plan, graph, segments);
  ProgramReplay replay(program, plan, graph, segments, report.counts);
  try {
    replay.replay_segments();
    replay.follow_links();
    replay.follow_orders();
    replay.replay_steps();
  } catch (Disproof& disproof) {
    report.failure = std::move(disproof.example);
  }
  return report;
}

std::string to_string(const VerifyReport& report) {
  std::string text;
  if (const auto& f = report.failure) {
    text += fmt::format("not proved ({}): {}\n", f->check, f->message);
    if (!f->instruction.empty()) text += fmt::format("  at      {}\n", f->instruction);
    if (f->rank >= 0) text += fmt::format("  rank    {}\n", f->rank);
    if (!f->tensor.empty()) text += fmt::format("  tensor  {}\n", f->tensor);
    if (!f->region.empty()) text += fmt::format("  region  {}\n", f->region);
    if (!f->history.empty()) text += "  history\n";
    for (const std::string& line : f->history) text += fmt::format("    {}\n", line);
    return text;
  }
  const VerifyCounts& c = report.counts;
  text += fmt::format("proved on {} devices\n", c.devices);
  text += fmt::format("  segments     {} programs, {} instructions, {} over all devices\n",
                      c.segments, c.instructions, c.device_instructions);
  text += fmt::format("  links        {} values and gradients between segments\n", c.links);
  text += fmt::format("  transfers    {} values and gradients between stages\n", c.transfers);
  text += fmt::format("  orders       {} passes, sends and receives, no deadlock\n", c.passes);
  text += fmt::format("  parameters   {} summed, updated once and at rest\n", c.parameters);
  return text;
}

}  // namespace meshwright
