// C to F: what the process groups, the model build, the micro-batch count and the interleaved
// schedule refuse (Megatron-LM 0.20: core/parallel_state.py, core/transformer/transformer_block.py,
// core/num_microbatches_calculator.py, core/pipeline_parallel/schedules.py). Restated from its
// behaviour.
#include <fmt/format.h>

#include <algorithm>

#include "emit/megatron_case.h"

namespace meshwright {
namespace {

using Case = MegatronCase;
using Result = std::optional<Broken>;

Result expert_world(const Case& c) {
  if (c.expert_dp || !c.expert_gtp) return {};
  // A dense model's expert grid is its dense grid, and A2 has spoken.
  if (!c.dp && c.ep == 1 && c.etp == c.tp) return {};
  const std::string shards =
      *c.expert_gtp > 1 ? fmt::format(" x weight shards {}", *c.expert_gtp) : "";
  return Broken{fmt::format("world size {} is not divisible by expert tp {} x ep {} x pp {}{}",
                            c.world, c.etp, c.ep, c.pp, shards),
                fmt::format("their product must divide {}: {}", c.world, list_divisors(c.world))};
}

Result pipeline_order(const Case& c) {
  if (!c.args.use_tp_pp_dp_mapping || c.pp == 1 || !c.dp || !c.expert_dp) return {};
  if (*c.dp == *c.expert_dp) return {};
  return Broken{
      fmt::format("--use-tp-pp-dp-mapping with data parallel {} of dense but {} of expert layers: "
                  "expert tp {} x ep {} is not tp {} x cp {}",
                  *c.dp, *c.expert_dp, c.etp, c.ep, c.tp, c.cp),
      "drop --use-tp-pp-dp-mapping, or choose --expert-tensor-parallel-size x ep = tp x cp"};
}

Result optimizer_instances(const Case& c) {
  const std::int64_t instances = c.args.num_distributed_optimizer_instances;
  if (instances == 1) return {};
  if (c.gtp.value_or(1) > 1 || c.expert_gtp.value_or(1) > 1)
    return Broken{fmt::format("{} distributed optimizer instances with weight shards", instances),
                  "1 instance"};
  if (c.dp && *c.dp * c.cp % instances != 0)
    return Broken{fmt::format("data parallel {} x cp {} does not divide by {} optimizer instances",
                              *c.dp, c.cp, instances),
                  fmt::format("legal instances are {}", list_divisors(*c.dp * c.cp))};
  if (c.expert_dp && *c.expert_dp % instances != 0)
    return Broken{fmt::format("expert data parallel {} does not divide by {} optimizer instances",
                              *c.expert_dp, instances),
                  fmt::format("legal instances are {}", list_divisors(*c.expert_dp))};
  return {};
}

Result batch_divides(const Case& c) {
  if (!c.dp || !c.gtp || !c.global_batch || !c.micro_batch || c.micro_batches) return {};
  const std::int64_t step = *c.micro_batch * *c.dp * *c.gtp;
  const std::string values = fmt::format("global batch {}, micro batch {} x data parallel {}",
                                         *c.global_batch, *c.micro_batch, *c.dp * *c.gtp);
  return Broken{*c.global_batch < step ? fmt::format("not one micro-batch per rank: {}", values)
                                       : fmt::format("{} do not divide", values),
                fmt::format("legal are multiples of {}, next {}", step,
                            nearest_multiples(*c.global_batch, step))};
}

bool interleaved(const Case& c) { return c.pipeline_known && c.pp > 1 && c.virtual_stages > 1; }

std::int64_t group_size(const Case& c) {
  return c.args.microbatch_group_size_per_virtual_pipeline_stage.value_or(c.pp);
}

Result group_fits(const Case& c) {
  if (!interleaved(c) || !c.micro_batches) return {};
  const std::int64_t group = group_size(c);
  if (group >= c.pp && group <= *c.micro_batches) return {};
  if (group < c.pp)
    return Broken{fmt::format("micro-batch groups of {} on pp = {}", group, c.pp),
                  fmt::format("groups of {} to {}", c.pp, std::max(c.pp, *c.micro_batches))};
  return Broken{
      fmt::format("{} micro-batches are fewer than a group of {} in an interleaved pipeline",
                  *c.micro_batches, group),
      fmt::format("global batch of {} or more, or no virtual stages",
                  group * (*c.micro_batch * *c.dp * *c.gtp))};
}

Result last_group_fits(const Case& c) {
  if (!interleaved(c) || !c.micro_batches) return {};
  const std::int64_t group = group_size(c);
  const std::int64_t rest = *c.micro_batches % group;
  if (group < c.pp || group > *c.micro_batches || rest == 0 || rest >= c.pp) return {};
  return Broken{
      fmt::format(
          "the last of {} micro-batches in groups of {} form a group of {}, less than pp = {}",
          *c.micro_batches, group, rest, c.pp),
      fmt::format("micro-batches a multiple of {}, next {}", group,
                  nearest_multiples(*c.micro_batches, group))};
}

const MegatronRule kGroupRules[] = {
    {"C1", expert_world},
    {"C2", pipeline_order},
    {"C3", optimizer_instances},
};

const MegatronRule kScheduleRules[] = {
    {"E1", batch_divides},
    {"F1", group_fits},
    {"F2", last_group_fits},
};

MegatronBuild stop_build(std::string id, std::string message, std::string legal) {
  return {{}, MegatronFinding{std::move(id), std::move(message), std::move(legal)}};
}

/// Layers of each pipeline rank, before they are cut into virtual stages. The counts may be
/// negative: Megatron does not look.
std::vector<std::int64_t> layers_per_rank(const Case& c) {
  const auto first = c.args.decoder_first_pipeline_num_layers;
  const auto last = c.args.decoder_last_pipeline_num_layers;
  const std::int64_t middle_ranks = c.pp - (first ? 1 : 0) - (last ? 1 : 0);
  const std::int64_t middle_layers = *c.units - first.value_or(0) - last.value_or(0);
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(c.pp),
                                  middle_ranks > 0 ? middle_layers / middle_ranks : 0);
  if (first) ranks.front() = *first;
  if (last) ranks.back() = *last;
  return ranks;
}

}  // namespace

std::span<const MegatronRule> megatron_group_rules() { return kGroupRules; }
std::span<const MegatronRule> megatron_schedule_rules() { return kScheduleRules; }

MegatronBuild build_megatron_layers(const MegatronCase& c) {
  if (c.layout) return {layers_of(*c.layout, c.pp), {}};
  const auto& a = c.args;
  const bool uneven = a.decoder_first_pipeline_num_layers || a.decoder_last_pipeline_num_layers;
  if (!uneven && *c.units % c.pp != 0)
    return stop_build("D1", fmt::format("{} layers do not divide by pp = {}", *c.units, c.pp),
                      fmt::format("legal pp are {}; or give a layout", list_divisors(*c.units)));

  const std::int64_t chunks = c.pp > 1 ? c.virtual_stages : 1;
  LayerTable table;
  for (const std::int64_t layers : layers_per_rank(c)) {
    if (layers % chunks != 0)
      return stop_build(
          "D2",
          fmt::format("{} layers per pipeline rank do not divide by {} virtual stages", layers,
                      chunks),
          fmt::format("legal virtual stages are {}; or give a layout",
                      list_divisors(std::max<std::int64_t>(1, layers))));
    table.emplace_back(static_cast<std::size_t>(chunks), layers / chunks);
  }
  if (a.account_for_embedding_in_pipeline_split) --table.front().front();
  if (a.account_for_loss_in_pipeline_split) --table.back().back();
  if ((a.account_for_embedding_in_pipeline_split && table.front().front() < 0) ||
      (a.account_for_loss_in_pipeline_split && table.back().back() < 0))
    return stop_build("D3", "too few layers in a stage to count the embedding or the loss as one",
                      "fewer stages, or do not count them");
  return {std::move(table), {}};
}

}  // namespace meshwright
