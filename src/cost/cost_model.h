#pragma once

#include <span>
#include <string_view>

#include "cost/efficiency.h"
#include "mesh/comm_mesh.h"
#include "plan/program.h"

namespace meshwright {

class ProfileUse;

/// Prices one instruction. One file per model in cost/, one line each in cost_model.cpp.
struct CostModel {
  std::string_view name;
  std::string_view summary;
  /// Kernels of one device. `profile`: the measurements to go by; null = none, and models that want
  /// none ignore it.
  Seconds (*compute)(const Instr& instr, const DeviceKind& kind, const Efficiency& efficiency,
                     ProfileUse* profile);
  /// A collective of all groups of a c-mesh at once; of one message where messages are told apart.
  Seconds (*collective)(CollectiveKind kind, Bytes bytes, const CommMesh& comm,
                        const Efficiency& efficiency, ProfileUse* profile);
};

std::span<const CostModel* const> all_cost_models();
/// Throws Error naming the known ones.
const CostModel& find_cost_model(std::string_view name);

extern const CostModel kAnalytic;
extern const CostModel kProfiled;

}  // namespace meshwright
