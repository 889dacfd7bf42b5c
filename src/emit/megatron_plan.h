#pragma once

#include <map>
#include <string>
#include <vector>

#include "emit/emitter.h"
#include "emit/megatron_args.h"
#include "emit/megatron_layout.h"
#include "emit/plan_grid.h"

namespace meshwright {

/// A plan in Megatron-LM's words.
struct MegatronPlan {
  MegatronArgs model;   ///< Options that describe the model,
  MegatronArgs layout;  ///< and those that say how and where it trains.
  MegatronArgs whole;   ///< Both, as Megatron reads them one behind the other.
  std::map<std::string, std::string> env;
  bool unset_max_connections = false;  ///< FSDP must not find CUDA_DEVICE_MAX_CONNECTIONS=1.
  PlanGrid grid;
  RankOrder order = RankOrder::kDpBeforePp;
  std::vector<DeviceId> devices;  ///< Per rank.
  /// Whether torchrun can start the ranks: equally many consecutive ones per host, on its first
  /// devices in order.
  bool torchrun = true;
  LayerTable layers;  ///< Decoder layers [pp][vpp] that Megatron will build.
};

/// The words, or what Megatron-LM cannot express, would refuse, or would accept and not do, one
/// sentence each. What is returned without faults passes check_megatron and its cautions (all but
/// a pipeline that never fills, which the plan chose knowing its cost).
struct MegatronPlanReading {
  MegatronPlan plan;
  std::vector<std::string> faults;
};
MegatronPlanReading read_megatron_plan(const EmitInput& input);

}  // namespace meshwright
