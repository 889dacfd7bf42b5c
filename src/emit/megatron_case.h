#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "emit/megatron_groups.h"
#include "emit/megatron_rules.h"

namespace meshwright {

/// What the rules look at: the arguments and what Megatron derives from them, in the order in which
/// it derives them. An empty value means that an earlier, broken rule leaves it undefined; rules
/// that need it then stay silent.
struct MegatronCase {
  const MegatronArgs& args;
  const std::map<std::string, std::string>& env;
  MegatronPlatform platform;
  std::int64_t world = 1;

  std::int64_t tp = 1, pp = 1, cp = 1, ep = 1, etp = 1;
  std::optional<std::int64_t> gtp, expert_gtp;  ///< Weight shards per tensor-parallel rank.
  std::optional<std::int64_t> dp, expert_dp;

  std::optional<std::int64_t> layers;  ///< Decoder layers.
  std::optional<std::int64_t> units;  ///< Layers, and embedding and loss when they count as layers.
  std::optional<MegatronLayout> layout;  ///< When given and well-formed.
  std::string layout_error;              ///< When given and not.
  std::int64_t virtual_stages = 1;       ///< Per pipeline rank; 1: not interleaved.
  bool pipeline_known = false;           ///< Whether virtual_stages is what Megatron computes.

  std::optional<std::int64_t> experts;       ///< None when absent or 0.
  std::optional<std::int64_t> query_groups;  ///< Only when grouped-query attention is on.
  std::optional<std::int64_t> sequence;      ///< Sequence length.
  bool sequence_parallel = false;            ///< Off when tp is 1, as Megatron turns it off.
  std::string recompute;                     ///< "", "full" or "selective".

  std::optional<std::int64_t> global_batch, micro_batch, eval_global_batch, eval_micro_batch;
  std::optional<std::int64_t> micro_batches, eval_micro_batches;

  bool fsdp() const { return args.use_megatron_fsdp || args.use_torch_fsdp2; }
  std::string checkpoint() const { return args.ckpt_format.value_or("torch_dist"); }
  std::string optimizer() const { return args.optimizer.value_or("adam"); }
  /// The variable's value, or nothing when it is not set.
  std::optional<std::string> variable(const std::string& name) const;
  /// Whether a run of these arguments needs CUDA_DEVICE_MAX_CONNECTIONS=1.
  bool needs_one_connection() const;
};

/// Works out the derived values. `args` and `env` must outlive the result.
MegatronCase make_megatron_case(const MegatronArgs& args, std::int64_t world,
                                const std::map<std::string, std::string>& env,
                                const MegatronPlatform& platform);

/// A rule's complaint.
struct Broken {
  std::string message;
  std::string legal;
};

/// One row of the rule tables.
struct MegatronRule {
  std::string_view id;
  std::optional<Broken> (*test)(const MegatronCase&);
};

std::span<const MegatronRule> megatron_argument_rules();  // A
std::span<const MegatronRule> megatron_config_rules();    // B
std::span<const MegatronRule> megatron_group_rules();     // C
std::span<const MegatronRule> megatron_schedule_rules();  // E, F

/// Decoder layers of every chunk as Megatron builds them, or the D rule that stops the build. Needs
/// all A and B rules to hold.
struct MegatronBuild {
  LayerTable layers;
  std::optional<MegatronFinding> broken;
};
MegatronBuild build_megatron_layers(const MegatronCase& c);

/// W: what is accepted and yet goes wrong. `layers` is the table of build_megatron_layers, or
/// empty.
std::vector<MegatronFinding> megatron_cautions(const MegatronCase& c, const LayerTable& layers);

/// "1, 2, 4, 7, 14, 28": the divisors of n, at most 24 of them.
std::string list_divisors(std::int64_t n);

/// "8 or 16": the multiples of `step` next to `value`.
std::string nearest_multiples(std::int64_t value, std::int64_t step);

}  // namespace meshwright
