#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "emit/megatron_args.h"
#include "emit/megatron_layout.h"

namespace meshwright {

/// One rule that a configuration breaks.
struct MegatronFinding {
  std::string rule;     ///< Letter of the step that refuses it and a number, e.g. "B1".
  std::string message;  ///< The rule with the values that break it.
  std::string legal;  ///< What would be legal, e.g. "heads = 28: legal tp are 1, 2, 4, 7, 14, 28".
};

/// What the run's hardware decides about the rules.
struct MegatronPlatform {
  /// From Blackwell on (compute capability 10) CUDA_DEVICE_MAX_CONNECTIONS need not be 1.
  int compute_capability = 9;
};

/// The answer of check_megatron. Rules are lettered by the step of Megatron that would refuse:
/// A argument validation, B the transformer configuration, C the process groups, D the model build,
/// E the micro-batch count, F the schedule at run time.
struct MegatronVerdict {
  bool args_ok = false;      ///< No A or B rule is broken: the arguments are accepted.
  bool groups_ok = false;    ///< No C rule is broken.
  bool build_ok = false;     ///< args_ok, and no D rule is broken.
  bool schedule_ok = false;  ///< No E or F rule is broken.
  bool final_ok = false;     ///< All of them: the run starts.
  /// final_ok, and what would misbehave costs time only (W3, a pipeline that never fills).
  bool fine = false;

  LayerTable layers;  ///< Decoder layers [pp rank][virtual stage]; empty unless build_ok.
  std::optional<std::int64_t> data_parallel, expert_data_parallel;
  std::optional<std::int64_t> micro_batches;  ///< Per step and data-parallel rank.

  std::vector<MegatronFinding> violations;
  /// Accepted, but not what the options seem to ask for: layers lost, options ignored, a stop in
  /// the first forward pass, a pipeline that never fills. Rule letter W.
  std::vector<MegatronFinding> would_misbehave;
  std::vector<std::string> warnings;  ///< What was not checked.
  /// Variables that the launcher has to set in addition to `env`.
  std::map<std::string, std::string> required_env;
};

/// Checks a configuration against the rules of Megatron-LM 0.20.0-dev (d98e8a64) for a training run
/// of `world_size` ranks. `env` holds the variables that the user sets; a missing
/// CUDA_DEVICE_MAX_CONNECTIONS is no violation but ends up in `required_env`, since the launcher
/// adds it. All broken rules are reported, not only the first. Throws Error when `world_size` is
/// out of range.
MegatronVerdict check_megatron(const MegatronArgs& args, std::int64_t world_size,
                               const std::map<std::string, std::string>& env,
                               const MegatronPlatform& platform = {});

}  // namespace meshwright
