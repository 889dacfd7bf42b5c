#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cluster/cluster.h"
#include "ir/graph.h"
#include "mesh/mesh.h"
#include "plan/segments.h"
#include "plan/strategy.h"

namespace meshwright {

/// What is kept sharded over the data-parallel devices (ZeRO, Rajbhandari et al. 2020).
enum class StateSharding {
  kNone,   ///< Parameters, gradients and optimizer state on every replica.
  kZero1,  ///< Optimizer state sharded.
  kZero2,  ///< Gradients too.
  kZero3,  ///< Parameters too (FSDP full shard).
};

/// What the forward pass does not keep (Chen et al. 2016; "selective": Korthikanti et al. 2022,
/// section 5).
enum class Recompute {
  kNone,
  kSelective,  ///< The attention core runs again in the backward pass.
  kFull,       ///< Only the inputs of a layer are kept.
  kParts,  ///< Co-sharded parts (transform co_shard) run again one by one: nothing inside them is
           ///< kept, and only one part's values live at a time.
};

std::string_view state_sharding_name(StateSharding s);  // "none", "zero1", …
std::string_view recompute_name(Recompute r);           // "none", "selective", "full", "parts"
StateSharding parse_state_sharding(std::string_view name);
Recompute parse_recompute(std::string_view name);

/// Numeric formats and optimizer of the run, which decide the bytes per parameter.
struct Training {
  DType dtype = DType::kBf16;  ///< Weights and activations: bf16, f16, f32; f8 = fp8 products on
                               ///< bf16 storage.
  std::string optimizer = "adamw";     ///< "adamw", "adam", "sgd" (with momentum).
  DType gradient_dtype = DType::kF32;  ///< Accumulated gradients.

  int parameter_bytes() const { return dtype == DType::kF8 ? 2 : dtype_bytes(dtype); }
  int gradient_bytes() const { return dtype_bytes(gradient_dtype); }
  /// fp32 master copy (mixed precision only) and moments.
  int optimizer_bytes() const;
};

/// Decisions about single operators and segments, over what the roles and the stage say.
struct Overrides {
  std::vector<OpOverride> rules;
  std::vector<std::int32_t> rule_of_op;  ///< Index into `rules` per operator; -1 = none.
  std::vector<std::int8_t> recompute;    ///< Per segment a Recompute; -1 = the stage's.
};

/// A pipeline stage: a mesh of devices and how its operators use the mesh's axes.
struct Stage {
  Mesh mesh;
  Roles roles;
  Recompute recompute = Recompute::kNone;
  StateSharding state = StateSharding::kNone;
  AxisList state_axes;  ///< Axes over which state is sharded (a part of data+context: hybrid).
  AxisList expert_state_axes;  ///< The same for parameters of grouped operators.
};

/// A run of segments on one stage. Chunk c of a plan runs on stage `stage`; activations flow from
/// chunk to chunk.
struct Chunk {
  int stage = 0;
  int first_segment = 0;
  int last_segment = 0;  ///< One past the end.
  int replica = 0;  ///< Bidirectional pipelines hold the model twice; the chunks of each cover it.
};

/// What an entry of a stage's order does. A transfer is issued and waited for apart: a send is
/// complete when waited for, a buffer is filled once its receive was.
enum class Phase : std::uint8_t {
  kForward,   ///< The forward lists of the chunk's segments.
  kBackward,  ///< The backward lists, last segment first.
  kWeight,    ///< The weight lists.
  kSend,      ///< Issues the sending of a transfer.
  kSendWait,
  kReceive,  ///< Issues the receiving of a transfer.
  kReceiveWait,
};
std::string_view phase_name(Phase phase);
constexpr bool is_pass(Phase phase) { return phase <= Phase::kWeight; }

/// Passes that a rule of order speaks of.
struct PassSet {
  static constexpr int kAll = -1;   ///< Every micro-batch.
  static constexpr int kEach = -2;  ///< On both sides of a rule: the same micro-batch.

  Phase phase = Phase::kForward;  ///< A pass.
  int chunk = 0;
  int micro_batch = kAll;
  friend bool operator==(const PassSet&, const PassSet&) = default;
};

/// An op-order: every pass of `before` ends before one of `after` starts. Whatever order the
/// schedule gives is changed as little as that takes.
struct OrderRule {
  PassSet before, after;
  friend bool operator==(const OrderRule&, const OrderRule&) = default;
};

/// Degrees of each kind of parallelism, as the user and Megatron speak of them.
struct Degrees {
  int pp = 1;                    ///< Pipeline stages.
  int vpp = 1;                   ///< Chunks per stage (virtual pipeline).
  int dp = 1;                    ///< Data-parallel replicas.
  int cp = 1;                    ///< Context parallel.
  int tp = 1;                    ///< Tensor parallel.
  bool sp = false;               ///< Sequence parallel on the tensor axes.
  int ep = 1;                    ///< Expert parallel: a factor of dp * cp * tp / etp.
  int etp = 1;                   ///< Tensor parallel inside experts.
  std::int64_t micro_batch = 1;  ///< Sequences per replica and micro-batch.
  StateSharding zero = StateSharding::kNone;
  int zero_group = 0;  ///< Devices that share one copy of the state; 0 = all of dp * cp.
  Recompute recompute = Recompute::kNone;
  bool pp_inside_dp =
      false;  ///< Rank order tp-cp-pp-dp (pipeline neighbours closer than replicas).

  int devices() const { return pp * dp * cp * tp; }
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

/// Whether the expert groups (etp, ep) and the dense ones (tp, cp, dp) are unions of common axes.
bool experts_refine(const Degrees& degrees);

/// "pp4 tp8+sp dp16 cp1 mbs1 vpp2 zero1 recompute=none": degrees of 1 left out.
std::string to_string(const Degrees& degrees);

/// The decisions, in normal form.
struct Plan {
  Training training;
  Degrees degrees;  ///< Where the plan came from; stages and chunks below are what counts.
  std::int64_t global_batch = 1;
  std::int64_t micro_batches = 1;  ///< Per step and replica.
  std::string schedule = "1f1b";   ///< Name in the schedule table.
  std::vector<Stage> stages;
  std::vector<Chunk> chunks;     ///< In the order of the forward pass, one replica after the other.
  std::vector<OrderRule> order;  ///< Over what the schedule gives.
  std::shared_ptr<const Overrides> overrides;  ///< Null = none.
};

/// Builds the plan of some degrees: meshes, roles and stages; `cuts` gives the first segment of
/// every chunk but the first (pp*vpp - 1 entries, the same for every replica). The schedule places
/// the chunks; empty = the one that the degrees imply. Throws Error when a degree is illegal for
/// this model, cluster or schedule, with the legal values.
Plan make_plan(const Graph& graph, const std::vector<Segment>& segments, const Cluster& cluster,
               const Training& training, std::int64_t global_batch, const Degrees& degrees,
               const std::vector<int>& cuts, std::string_view schedule = {});

/// Ranks that run a plan: rank r is device r.
int rank_count(const Plan& plan);

/// The mesh and roles of one stage of these degrees. `kv_heads` are the distinct sizes of key/value
/// head dimensions (axes are cut so that key/value heads can be split less than query heads).
Stage make_stage(const Degrees& degrees, const std::vector<std::int64_t>& kv_heads, int stage);

/// The versioned JSON form (docs/plan_format.md). The plan names the model and cluster only by
/// text.
Json plan_to_json(const Plan& plan, const std::vector<Segment>& segments);
Plan plan_from_json(const Json& json, const std::vector<Segment>& segments,
                    std::string_view source);

}  // namespace meshwright
