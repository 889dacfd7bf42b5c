// W rules: configurations that Megatron accepts although they do not do what they say. Sources are
// Megatron-LM 0.20 (core/transformer/attention.py, moe/moe_layer.py, dot_product_attention.py,
// tensor_parallel/mappings.py), Transformer Engine's context parallelism, and public issue threads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "emit/megatron_case.h"

namespace meshwright {
namespace {

using Case = MegatronCase;
using Result = std::optional<Broken>;

/// NVIDIA/Megatron-LM#1304 and #1778: the model built is not the model asked for.
Result layers_lost(const Case& c, const LayerTable& table) {
  if (table.empty() || !c.layers) return {};
  std::int64_t built = 0, least = 0;
  for (const auto& rank : table) {
    for (const std::int64_t n : rank) {
      built += std::max<std::int64_t>(n, 0);
      least = std::min(least, n);
    }
  }
  if (built == *c.layers) return {};
  const std::string why = least < 0 ? fmt::format(" (a stage is assigned {} layers)", least) : "";
  return Broken{fmt::format("num-layers is {} but the stages build {}{}", *c.layers, built, why),
                "first + last + the middle stages must give num-layers; a layout says it exactly"};
}

/// NVIDIA/Megatron-LM#5755: the first forward pass stops.
Result query_groups(const Case& c, const LayerTable&) {
  if (!c.query_groups || !c.args.num_attention_heads) return {};
  const std::int64_t heads = *c.args.num_attention_heads;
  if (*c.query_groups > 0 && heads % *c.query_groups == 0) return {};
  return Broken{fmt::format("{} attention heads in {} query groups: the first forward pass stops",
                            heads, *c.query_groups),
                fmt::format("heads = {}: legal query groups are {}", heads, list_divisors(heads))};
}

Result pipeline_fills(const Case& c, const LayerTable&) {
  if (!c.micro_batches || c.pp == 1 || c.virtual_stages > 1 || *c.micro_batches >= c.pp) return {};
  return Broken{
      fmt::format(
          "{} micro-batches never fill {} pipeline stages: at least {:.0f} % of the "
          "time is idle",
          *c.micro_batches, c.pp,
          100.0 * static_cast<double>(c.pp - 1) / static_cast<double>(*c.micro_batches + c.pp - 1)),
      fmt::format("global batch of {} or more", c.pp * (*c.micro_batch * *c.dp * *c.gtp))};
}

Result sequence_parallel(const Case& c, const LayerTable&) {
  if (c.args.sequence_parallel && c.tp == 1)
    return Broken{"--sequence-parallel is dropped silently with tp = 1", "tp of 2 or more"};
  if (c.sequence_parallel && c.sequence && *c.sequence % c.cp == 0 &&
      *c.sequence / c.cp % c.tp != 0)
    return Broken{fmt::format("--sequence-parallel cannot split {} tokens per rank over tp = {}",
                              *c.sequence / c.cp, c.tp),
                  fmt::format("legal tp are {}", list_divisors(*c.sequence / c.cp))};
  if (!c.args.sequence_parallel && c.experts && c.tp > 1)
    return Broken{
        fmt::format("experts with tp = {} but no --sequence-parallel: the first forward pass "
                    "stops",
                    c.tp),
        "--sequence-parallel, or tp 1"};
  return {};
}

Result recomputed_layers(const Case& c, const LayerTable& table) {
  if (c.recompute != "full" || !c.args.recompute_num_layers || table.empty()) return {};
  std::int64_t most = 0;
  for (const auto& rank : table) most = std::max(most, *std::ranges::max_element(rank));
  const std::int64_t wanted = *c.args.recompute_num_layers;
  if (wanted >= 1 && wanted <= most) return {};
  return Broken{
      fmt::format("--recompute-num-layers {} on stages of at most {} layers", wanted, most),
      fmt::format("1 to {}", std::max<std::int64_t>(1, most))};
}

Result widths_divide(const Case& c, const LayerTable&) {
  const auto& a = c.args;
  const auto test = [](std::optional<std::int64_t> width, std::int64_t ways, std::string_view what,
                       std::string_view degree) -> Result {
    if (!width || *width % ways == 0) return {};
    return Broken{fmt::format("{} {} does not divide by {} = {}", what, *width, degree, ways),
                  fmt::format("legal {} are {}", degree, list_divisors(*width))};
  };
  std::optional<std::int64_t> ffn = a.ffn_hidden_size;
  if (!ffn && a.hidden_size && !a.swiglu) ffn = 4 * *a.hidden_size;
  if (auto broken = test(ffn, c.tp, "ffn-hidden-size", "tp")) return broken;
  if (!c.experts) return {};
  const auto expert_ffn = a.moe_ffn_hidden_size ? a.moe_ffn_hidden_size : ffn;
  if (auto broken = test(expert_ffn, c.etp, "moe-ffn-hidden-size", "expert tp")) return broken;
  return test(a.moe_shared_expert_intermediate_size, c.tp, "moe-shared-expert-intermediate-size",
              "tp");
}

Result context_parallel(const Case& c, const LayerTable&) {
  if (c.cp == 1) return {};
  const auto& a = c.args;
  if (a.transformer_impl == "local")
    return Broken{
        fmt::format("cp = {} with --transformer-impl local, whose attention has none", c.cp),
        "--transformer-impl transformer_engine"};
  // All-to-all attention moves whole heads, so every rank of the group needs some of them.
  if (std::ranges::count(a.cp_comm_type, "a2a") == 0 || !a.num_attention_heads) return {};
  const std::int64_t heads = *a.num_attention_heads / c.tp;
  const std::int64_t groups =
      c.query_groups ? std::max<std::int64_t>(1, *c.query_groups / c.tp) : heads;
  if (heads % c.cp == 0 && groups % c.cp == 0) return {};
  return Broken{
      fmt::format("all-to-all context parallelism splits {} heads and {} key-value heads per "
                  "rank over cp = {}",
                  heads, groups, c.cp),
      fmt::format("legal cp are {}; or --cp-comm-type p2p", list_divisors(groups))};
}

Result ignored_options(const Case& c, const LayerTable&) {
  const auto& a = c.args;
  if (a.num_query_groups && !a.group_query_attention)
    return Broken{fmt::format("--num-query-groups {} is ignored without --group-query-attention",
                              *a.num_query_groups),
                  "add --group-query-attention"};
  if (a.data_parallel_sharding_strategy && !a.use_megatron_fsdp)
    return Broken{"--data-parallel-sharding-strategy is ignored without --use-megatron-fsdp",
                  "add --use-megatron-fsdp"};
  return {};
}

/// Evaluation runs the same schedule with its own number of micro-batches.
Result evaluation_schedule(const Case& c, const LayerTable&) {
  if (!c.pipeline_known || c.pp == 1 || c.virtual_stages == 1) return {};
  if (!c.eval_micro_batches || c.eval_micro_batches == c.micro_batches) return {};
  const std::int64_t group = c.args.microbatch_group_size_per_virtual_pipeline_stage.value_or(c.pp);
  const std::int64_t rest = *c.eval_micro_batches % group;
  if (group <= *c.eval_micro_batches && (rest == 0 || rest >= c.pp)) return {};
  return Broken{
      fmt::format("{} micro-batches of evaluation do not fit the interleaved schedule: it "
                  "stops at the first evaluation",
                  *c.eval_micro_batches),
      fmt::format("a multiple of {}", group)};
}

struct Caution {
  std::string_view id;
  Result (*test)(const Case&, const LayerTable&);
};

constexpr Caution kCautions[] = {
    {"W1", layers_lost},       {"W2", query_groups},      {"W3", pipeline_fills},
    {"W4", sequence_parallel}, {"W5", recomputed_layers}, {"W6", widths_divide},
    {"W7", context_parallel},  {"W8", ignored_options},   {"W9", evaluation_schedule},
};

}  // namespace

std::vector<MegatronFinding> megatron_cautions(const MegatronCase& c, const LayerTable& layers) {
  std::vector<MegatronFinding> findings;
  for (const auto& caution : kCautions)
    if (auto broken = caution.test(c, layers))
      findings.push_back({std::string(caution.id), broken->message, broken->legal});
  return findings;
}

}  // namespace meshwright
