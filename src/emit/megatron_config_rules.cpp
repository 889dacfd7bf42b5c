// B rules: what the transformer configuration refuses (Megatron-LM 0.20, core/transformer/
// transformer_config.py and core/model_parallel_config.py). Restated from its behaviour.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/spelling.h"
#include "emit/megatron_case.h"

namespace meshwright {
namespace {

using Case = MegatronCase;
using Result = std::optional<Broken>;

Result heads_divide(const Case& c) {
  const auto heads = c.args.num_attention_heads;
  if (!heads || *heads % c.tp == 0) return {};
  return Broken{fmt::format("{} attention heads do not divide by tp = {}", *heads, c.tp),
                fmt::format("heads = {}: legal tp are {}", *heads, list_divisors(*heads))};
}

Result query_groups_divide(const Case& c) {
  if (!c.query_groups) return {};
  const std::int64_t groups = *c.query_groups;
  // Zero groups pass here, as they do in Megatron; a W rule names them.
  if (groups % c.tp == 0 || (groups > 0 && c.tp % groups == 0)) return {};
  return Broken{
      fmt::format("{} query groups are neither a multiple nor a divisor of tp = {}", groups, c.tp),
      fmt::format("legal tp are the divisors of {} ({}) and its multiples", groups,
                  list_divisors(groups))};
}

bool accounts(const MegatronArgs& a) {
  return a.account_for_embedding_in_pipeline_split || a.account_for_loss_in_pipeline_split;
}

bool first_or_last(const MegatronArgs& a) {
  return a.decoder_first_pipeline_num_layers || a.decoder_last_pipeline_num_layers;
}

Result uneven_excludes(const Case& c) {
  const auto& a = c.args;
  if (a.pipeline_model_parallel_layout && (first_or_last(a) || accounts(a)))
    return Broken{
        "a pipeline layout together with --decoder-first/last-pipeline-num-layers or "
        "--account-for-embedding/loss-in-pipeline-split",
        "give the layout alone: it says all of it"};
  if (first_or_last(a) && accounts(a))
    return Broken{
        "--decoder-first/last-pipeline-num-layers together with "
        "--account-for-embedding/loss-in-pipeline-split",
        "one of the two, or a layout"};
  return {};
}

Result layout_is_whole(const Case& c) {
  if (!c.layout || !c.pipeline_known || !c.layers) return {};
  const std::string fault =
      layout_fault(*c.layout, c.pp, *c.layers, c.args.mtp_num_layers.value_or(0));
  if (fault.empty()) return {};
  return Broken{fmt::format("pipeline layout: {}", fault),
                fmt::format("E first and L last, once each, and {} t between them", *c.layers)};
}

/// One end of an uneven pipeline.
Result end_stage(const Case& c, std::optional<std::int64_t> layers, std::string_view which) {
  if (!layers || c.layout) return {};
  if (*layers == 0)
    return Broken{fmt::format("the {} pipeline stage holds no layer", which), "1 or more"};
  if (!c.pipeline_known || *layers % c.virtual_stages == 0) return {};
  return Broken{fmt::format("{} layers of the {} pipeline stage do not divide by {} virtual stages",
                            *layers, which, c.virtual_stages),
                fmt::format("legal virtual stages are {}", list_divisors(*layers))};
}

/// The ranks between a first and a last stage of their own must share the other layers evenly.
Result middle_stages(const Case& c) {
  const auto& a = c.args;
  if (a.pipeline_model_parallel_layout || !first_or_last(a) || !c.layers) return {};
  const std::int64_t ends =
      (a.decoder_first_pipeline_num_layers ? 1 : 0) + (a.decoder_last_pipeline_num_layers ? 1 : 0);
  const std::int64_t stages = c.pp - ends;
  const std::int64_t layers = *c.layers - a.decoder_first_pipeline_num_layers.value_or(0) -
                              a.decoder_last_pipeline_num_layers.value_or(0);
  const std::string left =
      fmt::format("{} layers are left for {} middle pipeline ranks", layers, stages);
  if ((layers != 0) != (stages != 0))
    return Broken{left, "first + last + an equal share for every middle rank must give num-layers"};
  if (stages == 0) return {};
  if (layers % stages != 0)
    return Broken{left + " and do not divide",
                  fmt::format("legal numbers of middle ranks are {}; or give a layout",
                              list_divisors(std::max<std::int64_t>(layers, 1)))};
  if (c.pipeline_known && layers / stages % c.virtual_stages != 0)
    return Broken{
        fmt::format("{} layers per middle pipeline rank do not divide by {} virtual stages",
                    layers / stages, c.virtual_stages),
        fmt::format("legal virtual stages are {}",
                    list_divisors(std::max<std::int64_t>(1, layers / stages)))};
  return {};
}

Result accounted_split(const Case& c) {
  const auto& a = c.args;
  if (!accounts(a) || a.pipeline_model_parallel_layout || first_or_last(a) || !c.units) return {};
  if (*c.units % c.pp != 0)
    return Broken{fmt::format("{} layers, with embedding or loss counted, do not divide by pp = {}",
                              *c.units, c.pp),
                  fmt::format("legal pp are {}", list_divisors(*c.units))};
  if (!c.pipeline_known || *c.units / c.pp % c.virtual_stages == 0) return {};
  return Broken{
      fmt::format("{} layers per pipeline rank, with embedding or loss counted, do not divide "
                  "by {} virtual stages",
                  *c.units / c.pp, c.virtual_stages),
      fmt::format("legal virtual stages are {}", list_divisors(*c.units / c.pp))};
}

Result recompute_complete(const Case& c) {
  const auto& a = c.args;
  if (c.recompute == "full") {
    if (!a.recompute_method)
      return Broken{"full recomputation without --recompute-method", "uniform or block"};
    if (!a.recompute_num_layers)
      return Broken{"full recomputation without --recompute-num-layers",
                    c.layers ? fmt::format("1 to {}", std::max<std::int64_t>(1, *c.layers / c.pp))
                             : "1 or more"};
  }
  if (c.recompute == "selective" && a.recompute_num_layers)
    return Broken{"--recompute-num-layers with selective recomputation",
                  "drop --recompute-num-layers: selective recomputation takes every layer"};
  return {};
}

Result recompute_modules(const Case& c) {
  const auto& a = c.args;
  if (c.recompute != "selective") return {};
  constexpr std::array<std::string_view, 11> kModules = {
      "core_attn",      "moe_act",      "layernorm",   "mla_up_proj", "mlp", "moe",
      "shared_experts", "gdn_norm_out", "gdp_in_proj", "gdp_qkv",     "mhc"};
  for (const auto& module : a.recompute_modules) {
    if (std::ranges::count(kModules, module) == 0)
      return Broken{fmt::format("{} is no module to recompute", in_quotes(module)),
                    fmt::format("legal are {}", fmt::join(kModules, ", "))};
    if (module == "moe_act" && !a.moe_grouped_gemm)
      return Broken{"recomputing moe_act without --moe-grouped-gemm", "add --moe-grouped-gemm"};
    if (module == "mla_up_proj" && !a.multi_latent_attention)
      return Broken{"recomputing mla_up_proj without multi-latent attention",
                    "drop mla_up_proj from --recompute-modules"};
    if (module == "shared_experts" && a.moe_shared_expert_overlap &&
        a.moe_shared_expert_intermediate_size)
      return Broken{"recomputing shared_experts with --moe-shared-expert-overlap",
                    "drop the one or the other"};
  }
  return {};
}

Result offload(const Case& c) {
  const std::int64_t offloaded = c.args.cpu_offloading_num_layers;
  if (offloaded == 0) return {};
  if (c.layers && offloaded >= *c.layers)
    return Broken{fmt::format("{} of {} layers offloaded to the CPU", offloaded, *c.layers),
                  fmt::format("at most {}", *c.layers - 1)};
  if (c.pp > 1) return Broken{fmt::format("CPU offload with pp = {}", c.pp), "pp 1"};
  if (!c.recompute.empty())
    return Broken{"CPU offload with recomputation", "drop the one or the other"};
  return {};
}

Result expert_overlap(const Case& c) {
  const auto& a = c.args;
  if (!a.overlap_moe_expert_parallel_comm) return {};
  const std::string what = "--overlap-moe-expert-parallel-comm ";
  if (c.ep == 1) return Broken{what + "with ep = 1", "ep of 2 or more"};
  if (c.pp > 1 && c.pipeline_known && c.virtual_stages == 1)
    return Broken{what + fmt::format("with pp = {} and no virtual stages", c.pp),
                  "an interleaved pipeline, or pp 1"};
  if (a.moe_token_dispatcher_type.value_or("allgather") == "allgather")
    return Broken{what + "with the allgather token dispatcher",
                  "--moe-token-dispatcher-type alltoall or flex"};
  if (c.recompute == "full" || a.recompute_method || a.recompute_num_layers ||
      std::ranges::count(a.recompute_modules, "moe") > 0)
    return Broken{what + "with recomputation of whole layers or of the experts",
                  "selective recomputation of other modules"};
  if (!a.bf16 && !a.fp16) return Broken{what + "in fp32", "--bf16 or --fp16"};
  if (a.moe_shared_expert_overlap)
    return Broken{what + "with --moe-shared-expert-overlap", "one of them"};
  if (a.mtp_num_layers.value_or(0) > 1)
    return Broken{what + fmt::format("with {} prediction layers", *a.mtp_num_layers), "at most 1"};
  return {};
}

Result moe_sizes(const Case& c) {
  const auto& a = c.args;
  if (!c.experts && a.moe_ffn_hidden_size)
    return Broken{"--moe-ffn-hidden-size in a model without experts", "--num-experts, or drop it"};
  const bool dispatched = a.moe_token_dispatcher_type.value_or("allgather") != "allgather";
  if (a.moe_shared_expert_overlap && a.moe_shared_expert_intermediate_size && !dispatched)
    return Broken{"--moe-shared-expert-overlap with the allgather token dispatcher",
                  "--moe-token-dispatcher-type alltoall or flex"};
  return {};
}

Result deferred_embedding(const Case& c) {
  if (!c.args.defer_embedding_wgrad_compute) return {};
  if (c.pp == 1)
    return Broken{"--defer-embedding-wgrad-compute with pp = 1", "pp of 2 or more, or drop it"};
  if (c.args.no_gradient_accumulation_fusion)
    return Broken{"--defer-embedding-wgrad-compute without gradient accumulation fusion",
                  "drop --no-gradient-accumulation-fusion"};
  return {};
}

Result context_types(const Case& c) {
  const auto types = static_cast<std::int64_t>(c.args.cp_comm_type.size());
  if (c.cp == 1 || types <= 1 || !c.layers || types == *c.layers) return {};
  return Broken{fmt::format("{} cp-comm-type values for {} layers", types, *c.layers),
                fmt::format("1 value for all layers, or {}", *c.layers)};
}

const MegatronRule kRules[] = {
    {"B1", heads_divide},
    {"B2", query_groups_divide},
    {"B3", uneven_excludes},
    {"B4", layout_is_whole},
    {"B5",
     [](const Case& c) { return end_stage(c, c.args.decoder_first_pipeline_num_layers, "first"); }},
    {"B6",
     [](const Case& c) { return end_stage(c, c.args.decoder_last_pipeline_num_layers, "last"); }},
    {"B7", middle_stages},
    {"B8", accounted_split},
    {"B9", recompute_complete},
    {"B10",
     [](const Case& c) -> Result {
       if (!c.args.distribute_saved_activations || !c.sequence_parallel || c.recompute.empty())
         return {};
       return Broken{"--distribute-saved-activations with --sequence-parallel",
                     "sequence parallelism already distributes them: drop the former"};
     }},
    {"B11", recompute_modules},
    {"B12", offload},
    {"B13",
     [](const Case& c) -> Result {
       if (!c.experts || c.args.disable_bias_linear || c.etp == 1) return {};
       return Broken{fmt::format("experts with biases and expert tensor parallelism {}", c.etp),
                     "--disable-bias-linear, or --expert-tensor-parallel-size 1"};
     }},
    {"B14", moe_sizes},
    {"B15", expert_overlap},
    {"B16", deferred_embedding},
    {"B17", context_types},
};

}  // namespace

std::span<const MegatronRule> megatron_config_rules() { return kRules; }

}  // namespace meshwright
