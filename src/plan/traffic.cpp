#include "plan/traffic.h"

#include <map>
#include <tuple>

namespace meshwright {

double sent_bytes(const Instr& instr, const Mesh& mesh) {
  if (instr.kind != InstrKind::kCollective) return 0;
  if (instr.peer_offset != 0) return instr.bytes.value;
  const double n = mesh.size(instr.group);
  if (n < 2) return 0;
  switch (instr.collective) {
    case CollectiveKind::kAllReduce:
      return 2 * instr.bytes.value * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return instr.bytes.value * (n - 1) / n;
    case CollectiveKind::kRing:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kHalo:
    case CollectiveKind::kPermute:
      return instr.bytes.value;
  }
  return 0;
}

std::vector<double> sent_bytes(const Program& program, const Plan& plan) {
  const auto mesh_of = [&](int stage) -> const Mesh& {
    return plan.stages[static_cast<std::size_t>(stage)].mesh;
  };
  std::map<std::tuple<int, int, Phase>, double> lists;  // By segment program, stage and pass.
  const auto list_bytes = [&](int segment, int stage, Phase phase) {
    const auto [it, fresh] = lists.try_emplace({segment, stage, phase});
    if (fresh) {
      const SegmentProgram& s = program.segments[static_cast<std::size_t>(segment)];
      const std::vector<Instr>& list = phase == Phase::kForward    ? s.forward
                                       : phase == Phase::kBackward ? s.backward
                                                                   : s.weight;
      for (const Instr& instr : list) it->second += sent_bytes(instr, mesh_of(stage));
    }
    return it->second;
  };
  std::vector<double> sent;
  for (const Lane& lane : program.lanes) {
    double& bytes = sent.emplace_back();
    for (const ScheduleItem& item : lane.order) {
      if (is_pass(item.phase)) {
        const ChunkProgram& chunk = program.chunks[static_cast<std::size_t>(item.chunk)];
        for (int s : chunk.segments) bytes += list_bytes(s, chunk.stage, item.phase);
      } else if (item.phase == Phase::kSend) {
        bytes += program.transfers[static_cast<std::size_t>(item.chunk)].bytes.value;
      }
    }
    for (int stage : lane.stages) {
      for (const Instr& instr : program.stages[static_cast<std::size_t>(stage)].step) {
        bytes += sent_bytes(instr, mesh_of(stage));
      }
    }
  }
  return sent;
}

}  // namespace meshwright
