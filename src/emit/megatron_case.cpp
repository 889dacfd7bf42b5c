#include "emit/megatron_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace meshwright {
namespace {

/// How many ways each weight is split beyond `tp`; nothing when the wanted number does not fit.
std::optional<std::int64_t> weight_shards(std::optional<std::int64_t> wanted, std::int64_t tp) {
  if (!wanted) return 1;
  if (*wanted < tp || *wanted % tp != 0) return std::nullopt;
  return *wanted / tp;
}

/// world / (a x b x c x d), or nothing when that leaves a rest.
std::optional<std::int64_t> replicas(std::int64_t world,
                                     std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) {
    if (world % size != 0) return std::nullopt;
    world /= size;
  }
  return world;
}

void derive_pipeline(MegatronCase& c) {
  const auto& a = c.args;
  if (a.pipeline_model_parallel_layout) {
    try {
      c.layout = parse_megatron_layout(*a.pipeline_model_parallel_layout);
    } catch (const Error& error) {
      c.layout_error = error.hint().empty() ? error.message()
                                            : fmt::format("{} ({})", error.message(), error.hint());
      return;
    }
    const auto stages = static_cast<std::int64_t>(c.layout->stages.size());
    if (stages % c.pp != 0) return;
    c.virtual_stages = stages / c.pp;
  } else if (a.num_virtual_stages_per_pipeline_rank) {
    c.virtual_stages = *a.num_virtual_stages_per_pipeline_rank;
  } else if (a.num_layers_per_virtual_pipeline_stage) {
    const std::int64_t per_chunk = *a.num_layers_per_virtual_pipeline_stage;
    if (!c.units || *c.units % c.pp != 0 || *c.units / c.pp % per_chunk != 0) return;
    c.virtual_stages = *c.units / c.pp / per_chunk;
  }
  c.pipeline_known = true;
}

void derive_batches(MegatronCase& c) {
  const auto& a = c.args;
  c.micro_batch = a.micro_batch_size;
  c.global_batch = a.global_batch_size;
  if (!c.global_batch && c.micro_batch && c.dp) c.global_batch = *c.micro_batch * *c.dp;
  c.eval_micro_batch = a.eval_micro_batch_size ? a.eval_micro_batch_size : c.micro_batch;
  c.eval_global_batch = a.eval_global_batch_size ? a.eval_global_batch_size : c.global_batch;
  if (!c.dp || !c.gtp) return;
  // dp x gtp divides the world, so the products below stay under 2^45.
  const auto count = [&](std::optional<std::int64_t> global, std::optional<std::int64_t> micro,
                         bool round_down) -> std::optional<std::int64_t> {
    if (!global || !micro) return std::nullopt;
    const std::int64_t step = *micro * *c.dp * *c.gtp;
    if (*global < step || (*global % step != 0 && !round_down)) return std::nullopt;
    return *global / step;
  };
  c.micro_batches = count(c.global_batch, c.micro_batch, a.decrease_batch_size_if_needed);
  c.eval_micro_batches = count(c.eval_global_batch, c.eval_micro_batch, false);
}

}  // namespace

std::optional<std::string> MegatronCase::variable(const std::string& name) const {
  const auto found = env.find(name);
  if (found == env.end()) return std::nullopt;
  return found->second;
}

bool MegatronCase::needs_one_connection() const {
  return (tp > 1 || cp > 1) && platform.compute_capability < 10 && !fsdp() &&
         !args.overlap_moe_expert_parallel_comm;
}

MegatronCase make_megatron_case(const MegatronArgs& args, std::int64_t world,
                                const std::map<std::string, std::string>& env,
                                const MegatronPlatform& platform) {
  MegatronCase c{.args = args, .env = env, .platform = platform, .world = world};
  c.tp = args.tensor_model_parallel_size;
  c.pp = args.pipeline_model_parallel_size;
  c.cp = args.context_parallel_size;
  c.ep = args.expert_model_parallel_size;
  c.etp = args.expert_tensor_parallel_size.value_or(c.tp);
  c.gtp = weight_shards(args.tensor_parallel_num_weight_shards, c.tp);
  c.expert_gtp = weight_shards(args.expert_tensor_parallel_num_weight_shards, c.etp);
  if (c.gtp) c.dp = replicas(world, {c.tp, *c.gtp, c.cp, c.pp});
  if (c.expert_gtp) c.expert_dp = replicas(world, {c.etp, c.ep, *c.expert_gtp, c.pp});

  c.layers = args.num_layers ? args.num_layers : args.encoder_num_layers;
  if (c.layers)
    c.units = *c.layers + (args.account_for_embedding_in_pipeline_split ? 1 : 0) +
              (args.account_for_loss_in_pipeline_split ? 1 : 0);
  derive_pipeline(c);

  if (args.num_experts.value_or(0) > 0) c.experts = args.num_experts;
  if (args.group_query_attention) c.query_groups = args.num_query_groups.value_or(1);
  c.sequence = args.seq_length ? args.seq_length : args.encoder_seq_length;
  c.sequence_parallel = args.sequence_parallel && c.tp > 1;
  c.recompute = args.recompute_activations ? "selective" : args.recompute_granularity.value_or("");
  derive_batches(c);
  return c;
}

std::string list_divisors(std::int64_t n) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  constexpr std::size_t kShown = 24;
  if (low.size() <= kShown) return fmt::format("{}", fmt::join(low, ", "));
  return fmt::format("{}, ... {}", fmt::join(low.begin(), low.begin() + kShown, ", "), n);
}

std::string nearest_multiples(std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  if (below == 0) return fmt::to_string(step);
  return fmt::format("{} or {}", below, below + step);
}

}  // namespace meshwright
