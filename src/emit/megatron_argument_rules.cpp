// A rules: what Megatron's argument validation refuses (Megatron-LM 0.20, training/arguments.py,
// validate_args), in its order. Restated from its behaviour; the messages are ours.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "emit/megatron_case.h"

namespace meshwright {
namespace {

using Case = MegatronCase;
using Result = std::optional<Broken>;

struct RetiredOption {
  std::string_view flag, instead;
};
constexpr RetiredOption kRetired[] = {
    {"--batch-size", "--micro-batch-size"},
    {"--warmup", "--lr-warmup-fraction"},
    {"--model-parallel-size", "--tensor-model-parallel-size"},
    {"--checkpoint-activations", "--recompute-activations or --recompute-granularity"},
};

Result retired_option(const Case& c) {
  for (const auto& option : kRetired)
    if (c.args.find_other(option.flag) != nullptr)
      return Broken{fmt::format("{} is no longer an option", option.flag),
                    fmt::format("use {}", option.instead)};
  return {};
}

Result shards_fit(std::optional<std::int64_t> shards, std::int64_t tp, std::string_view of) {
  if (!shards || (*shards >= tp && *shards % tp == 0)) return {};
  return Broken{
      fmt::format("{} weight shards = {} are no multiple of {} tp = {}", of, *shards, of, tp),
      fmt::format("legal are {}", nearest_multiples(*shards, tp))};
}

Result world_divides(const Case& c) {
  if (!c.gtp || c.dp) return {};
  const std::string shards = *c.gtp > 1 ? fmt::format(" x weight shards {}", *c.gtp) : "";
  return Broken{fmt::format("world size {} is not divisible by tp {} x pp {} x cp {}{}", c.world,
                            c.tp, c.pp, c.cp, shards),
                fmt::format("their product must divide {}: {}", c.world, list_divisors(c.world))};
}

Result hierarchical_product(const Case& c) {
  const auto& sizes = c.args.hierarchical_context_parallel_sizes;
  if (sizes.empty()) return {};
  std::int64_t rest = c.cp;
  for (const std::int64_t size : sizes) rest = rest % size == 0 ? rest / size : 0;
  if (rest == 1) return {};
  return Broken{fmt::format("the product of hierarchical-context-parallel-sizes {} is not cp = {}",
                            fmt::join(sizes, " x "), c.cp),
                fmt::format("sizes whose product is {}", c.cp)};
}

Result eval_batch_divides(const Case& c) {
  if (!c.dp || !c.gtp || !c.eval_global_batch || !c.eval_micro_batch) return {};
  const std::int64_t step = *c.eval_micro_batch * *c.dp * *c.gtp;
  if (*c.eval_global_batch % step == 0) return {};
  return Broken{
      fmt::format(
          "global batch {} (evaluation) is not divisible by micro batch {} x data parallel {}",
          *c.eval_global_batch, *c.eval_micro_batch, *c.dp * *c.gtp),
      fmt::format("legal are multiples of {}, next {}", step,
                  nearest_multiples(*c.eval_global_batch, step))};
}

int pipeline_options(const MegatronArgs& a) {
  return (a.num_layers_per_virtual_pipeline_stage ? 1 : 0) +
         (a.num_virtual_stages_per_pipeline_rank ? 1 : 0) +
         (a.pipeline_model_parallel_layout ? 1 : 0);
}

bool first_or_last(const MegatronArgs& a) {
  return a.decoder_first_pipeline_num_layers || a.decoder_last_pipeline_num_layers;
}

Result layout_stages_divide(const Case& c) {
  if (!c.layout_error.empty()) return Broken{c.layout_error, "e.g. Ett|(tt|)*6ttL"};
  if (!c.layout) return {};
  const auto stages = static_cast<std::int64_t>(c.layout->stages.size());
  if (stages % c.pp == 0) return {};
  return Broken{
      fmt::format("the pipeline layout has {} stages, no multiple of pp = {}", stages, c.pp),
      fmt::format("stages = {}: legal pp are {}", stages, list_divisors(stages))};
}

Result layers_divide(const Case& c) {
  const auto& a = c.args;
  if (!c.units || a.pipeline_model_parallel_layout || a.num_virtual_stages_per_pipeline_rank)
    return {};
  // Only the even split is checked here; the uneven one waits for the B rules.
  if (first_or_last(a) || *c.units % c.pp == 0) return {};
  const std::int64_t counted = *c.units - *c.layers;
  return Broken{
      fmt::format("{} layers{} do not divide by pp = {}", *c.layers,
                  counted > 0 ? fmt::format(" and {} counted for embedding or loss", counted) : "",
                  c.pp),
      fmt::format("legal pp are {}; or give an uneven split with --pipeline-model-parallel-layout",
                  list_divisors(*c.units))};
}

Result layers_divide_per_chunk(const Case& c) {
  const auto& a = c.args;
  if (!a.num_layers_per_virtual_pipeline_stage || a.num_virtual_stages_per_pipeline_rank ||
      a.pipeline_model_parallel_layout || !c.units || *c.units % c.pp != 0)
    return {};
  const std::int64_t per_rank = *c.units / c.pp;
  if (per_rank % *a.num_layers_per_virtual_pipeline_stage == 0) return {};
  return Broken{
      fmt::format("{} layers per pipeline rank do not divide by {} layers per virtual stage",
                  per_rank, *a.num_layers_per_virtual_pipeline_stage),
      fmt::format("legal layers per virtual stage are {}", list_divisors(per_rank))};
}

Result interleaving_needs_ranks(const Case& c) {
  if (!c.pipeline_known || c.virtual_stages == 1) return {};
  if (!c.args.no_overlap_p2p_communication) {
    if (c.pp > 1) return {};
    return Broken{fmt::format("{} virtual stages on pp = 1", c.virtual_stages),
                  "interleaving needs pp of 2 or more"};
  }
  if (c.pp > 2) return {};
  return Broken{fmt::format("{} virtual stages without overlapped communication on pp = {}",
                            c.virtual_stages, c.pp),
                "with --no-overlap-p2p-communication interleaving needs pp of 3 or more"};
}

Result one_schedule(const Case& c) {
  const auto& a = c.args;
  if (a.skip_train) return {};
  const auto both = [](std::string_view x, std::string_view y) {
    return Broken{fmt::format("{} does not go with {}", x, y),
                  "count a run either in iterations or in samples"};
  };
  if (a.train_iters.value_or(0) > 0) {
    if (a.train_samples) return both("--train-samples", "--train-iters");
    if (a.lr_decay_samples) return both("--lr-decay-samples", "--train-iters");
    if (a.lr_warmup_samples.value_or(0) > 0) return both("--lr-warmup-samples", "--train-iters");
    if (a.lr_warmup_fraction && a.lr_warmup_iters.value_or(0) > 0)
      return both("--lr-warmup-iters", "--lr-warmup-fraction");
  } else if (a.train_samples.value_or(0) > 0) {
    if (a.train_iters) return both("--train-iters", "--train-samples");
    if (a.lr_decay_iters) return both("--lr-decay-iters", "--train-samples");
    if (a.lr_warmup_iters.value_or(0) > 0) return both("--lr-warmup-iters", "--train-samples");
    if (a.lr_warmup_fraction && a.lr_warmup_samples.value_or(0) > 0)
      return both("--lr-warmup-samples", "--lr-warmup-fraction");
  }
  return {};
}

Result required_options(const Case& c) {
  const auto& a = c.args;
  std::vector<std::string_view> missing;
  if (!c.layers) missing.push_back("--num-layers");
  if (!a.hidden_size) missing.push_back("--hidden-size");
  if (!a.num_attention_heads) missing.push_back("--num-attention-heads");
  if (!a.max_position_embeddings) missing.push_back("--max-position-embeddings");
  if (!a.micro_batch_size) missing.push_back("--micro-batch-size");
  if (!c.sequence) missing.push_back("--seq-length");
  if (missing.empty()) return {};
  return Broken{
      fmt::format("{} {} missing", fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are"),
      "a training run needs them"};
}

Result one_spelling(const Case& c) {
  const auto& a = c.args;
  if (a.num_layers && a.encoder_num_layers)
    return Broken{"both --num-layers and --encoder-num-layers are given",
                  "give --num-layers alone"};
  if (a.seq_length && a.encoder_seq_length)
    return Broken{"both --seq-length and --encoder-seq-length are given",
                  "give --seq-length alone"};
  return {};
}

Result heads_divide_hidden(const Case& c) {
  const auto& a = c.args;
  if (a.kv_channels || !a.hidden_size || !a.num_attention_heads) return {};
  if (*a.hidden_size % *a.num_attention_heads == 0) return {};
  return Broken{fmt::format("hidden size {} does not divide by {} attention heads", *a.hidden_size,
                            *a.num_attention_heads),
                "give --kv-channels, or another number of heads"};
}

Result sequence_divides(const Case& c) {
  if (c.cp == 1 || !c.args.seq_length || *c.args.seq_length % (2 * c.cp) == 0) return {};
  const std::int64_t half = *c.args.seq_length / 2;
  return Broken{
      fmt::format("sequence length {} is no multiple of 2 x cp = {}", *c.args.seq_length, 2 * c.cp),
      *c.args.seq_length % 2 != 0 ? "an odd sequence length allows cp 1 only"
                                  : fmt::format("legal cp are {}", list_divisors(half))};
}

Result positions_suffice(const Case& c) {
  const auto& a = c.args;
  if (!a.max_position_embeddings) return {};
  const std::int64_t longest = std::max(c.sequence.value_or(0), a.decoder_seq_length.value_or(0));
  if (*a.max_position_embeddings >= longest) return {};
  return Broken{fmt::format("max-position-embeddings {} are fewer than the sequence length {}",
                            *a.max_position_embeddings, longest),
                fmt::format("{} or more", longest)};
}

Result saved_activations(const Case& c) {
  const auto& a = c.args;
  if (!a.distribute_saved_activations) return {};
  if (c.tp == 1)
    return Broken{"--distribute-saved-activations with tp = 1",
                  "tp of 2 or more, or drop the option"};
  if (c.recompute != "full")
    return Broken{"--distribute-saved-activations without full recomputation",
                  "--recompute-granularity full"};
  if (!a.recompute_method)
    return Broken{"--distribute-saved-activations without --recompute-method",
                  "--recompute-method uniform or block"};
  return {};
}

Result one_connection(const Case& c) {
  const auto value = c.variable("CUDA_DEVICE_MAX_CONNECTIONS");
  if (c.fsdp()) {
    if (value != "1") return {};
    return Broken{"FSDP with CUDA_DEVICE_MAX_CONNECTIONS=1", "unset it or set it above 1"};
  }
  if (!c.needs_one_connection() || !value || *value == "1") return {};
  return Broken{fmt::format("tp = {}, cp = {} with CUDA_DEVICE_MAX_CONNECTIONS={}", c.tp, c.cp,
                            value->substr(0, 40)),
                "CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell when tp or cp is above 1"};
}

Result experts_divide(const Case& c) {
  if (c.ep == 1) return {};
  if (!c.experts)
    return Broken{fmt::format("ep = {} in a model without experts", c.ep),
                  "ep 1, or --num-experts"};
  if (*c.experts % c.ep == 0) return {};
  return Broken{
      fmt::format("{} experts do not divide by ep = {}", *c.experts, c.ep),
      fmt::format("experts = {}: legal ep are {}", *c.experts, list_divisors(*c.experts))};
}

Result weight_shard_checkpoint(const Case& c) {
  if (c.gtp.value_or(1) == 1 && c.expert_gtp.value_or(1) == 1) return {};
  if (c.checkpoint() == "torch" || c.checkpoint() == "torch_dist") return {};
  return Broken{fmt::format("weight shards with --ckpt-format {}", c.checkpoint()),
                "--ckpt-format torch or torch_dist"};
}

/// A condition that excludes an option: `when` holds, and the run is refused.
Result forbid(bool when, std::string_view message, std::string_view legal) {
  if (!when) return {};
  return Broken{std::string(message), std::string(legal)};
}

constexpr std::string_view kDropFsdp2 = "drop the one or the other";

const MegatronRule kRules[] = {
    {"A1",
     [](const Case& c) {
       return shards_fit(c.args.tensor_parallel_num_weight_shards, c.tp, "dense");
     }},
    {"A2", world_divides},
    {"A3", hierarchical_product},
    {"A4",
     [](const Case& c) {
       return forbid(std::ranges::count(c.args.cp_comm_type, "a2a+p2p") > 0 &&
                         c.args.hierarchical_context_parallel_sizes.empty(),
                     "cp-comm-type a2a+p2p without --hierarchical-context-parallel-sizes",
                     "give the sizes of the a2a and the p2p groups");
     }},
    {"A5", retired_option},
    {"A6", required_options},
    {"A7", eval_batch_divides},
    {"A8",
     [](const Case& c) {
       return forbid(pipeline_options(c.args) > 1,
                     "more than one of --num-layers-per-virtual-pipeline-stage, "
                     "--num-virtual-stages-per-pipeline-rank, --pipeline-model-parallel-layout",
                     "give the layout alone: it says all of it");
     }},
    {"A9", layout_stages_divide},
    {"A10",
     [](const Case& c) {
       const auto& a = c.args;
       return forbid(
           a.num_layers_per_virtual_pipeline_stage && !a.num_virtual_stages_per_pipeline_rank &&
               !a.pipeline_model_parallel_layout && first_or_last(a),
           "--num-layers-per-virtual-pipeline-stage with a first or last stage of its own",
           "use --num-virtual-stages-per-pipeline-rank or a layout");
     }},
    {"A11", layers_divide},
    {"A12", layers_divide_per_chunk},
    {"A13", interleaving_needs_ranks},
    {"A14",
     [](const Case& c) {
       const auto& a = c.args;
       return forbid(a.overlap_param_gather && !a.use_distributed_optimizer &&
                         !a.use_megatron_fsdp && c.optimizer() != "dist_muon",
                     "--overlap-param-gather without a sharded optimizer",
                     "add --use-distributed-optimizer or --use-megatron-fsdp");
     }},
    {"A15",
     [](const Case& c) {
       return forbid(c.args.overlap_param_gather && !c.args.overlap_grad_reduce,
                     "--overlap-param-gather without --overlap-grad-reduce",
                     "add --overlap-grad-reduce");
     }},
    {"A16",
     [](const Case& c) {
       const auto& a = c.args;
       const bool served = a.use_distributed_optimizer && a.overlap_param_gather &&
                           c.virtual_stages > 1 && c.checkpoint() == "torch";
       return forbid(a.overlap_param_gather_with_optimizer_step && c.pipeline_known && !served,
                     "--overlap-param-gather-with-optimizer-step needs the distributed optimizer, "
                     "--overlap-param-gather, an interleaved pipeline and --ckpt-format torch",
                     "add what is missing or drop the option");
     }},
    {"A17",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && c.pp > 1,
                     fmt::format("--use-torch-fsdp2 with pp = {}", c.pp), "pp 1");
     }},
    {"A18",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && c.ep > 1,
                     fmt::format("--use-torch-fsdp2 with ep = {}", c.ep), "ep 1");
     }},
    {"A19",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && c.args.use_distributed_optimizer,
                     "--use-torch-fsdp2 with --use-distributed-optimizer", kDropFsdp2);
     }},
    {"A20",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && !c.args.no_gradient_accumulation_fusion,
                     "--use-torch-fsdp2 with gradient accumulation fusion",
                     "add --no-gradient-accumulation-fusion");
     }},
    {"A21",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && c.checkpoint() != "torch_dist" &&
                         c.checkpoint() != "torch_dcp",
                     fmt::format("--use-torch-fsdp2 with --ckpt-format {}", c.checkpoint()),
                     "--ckpt-format torch_dist or torch_dcp");
     }},
    {"A22",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && !c.args.untie_embeddings_and_output_weights,
                     "--use-torch-fsdp2 with tied embeddings",
                     "add --untie-embeddings-and-output-weights");
     }},
    {"A23",
     [](const Case& c) {
       return forbid(c.args.use_torch_fsdp2 && c.args.fp16, "--use-torch-fsdp2 with --fp16",
                     "--bf16");
     }},
    {"A24",
     [](const Case& c) {
       return forbid(c.args.use_megatron_fsdp && c.args.megatron_fsdp_version == 2 &&
                         c.args.use_distributed_optimizer,
                     "--megatron-fsdp-version 2 with --use-distributed-optimizer",
                     "drop --use-distributed-optimizer");
     }},
    {"A25",
     [](const Case& c) {
       return forbid(c.fsdp() && c.optimizer() != "sgd" && c.optimizer() != "adam",
                     fmt::format("FSDP with --optimizer {}", c.optimizer()), "adam or sgd");
     }},
    {"A26",
     [](const Case& c) {
       return forbid(c.args.use_megatron_fsdp && c.checkpoint() != "fsdp_dtensor",
                     fmt::format("--use-megatron-fsdp with --ckpt-format {}", c.checkpoint()),
                     "--ckpt-format fsdp_dtensor");
     }},
    {"A27",
     [](const Case& c) {
       return forbid(c.args.fp16 && c.args.bf16, "both --fp16 and --bf16", "one of them");
     }},
    {"A28", one_schedule},
    {"A29", one_spelling},
    {"A30", heads_divide_hidden},
    {"A31", sequence_divides},
    {"A32", positions_suffice},
    {"A33", saved_activations},
    {"A34",
     [](const Case& c) {
       return forbid(c.recompute == "selective" && c.args.recompute_method,
                     "a --recompute-method with selective recomputation",
                     "drop --recompute-method, or --recompute-granularity full");
     }},
    {"A35",
     [](const Case& c) {
       return forbid(c.args.tp_comm_overlap && !c.sequence_parallel,
                     "--tp-comm-overlap without sequence parallelism",
                     "--sequence-parallel and tp of 2 or more");
     }},
    {"A36", one_connection},
    {"A37",
     [](const Case& c) {
       return shards_fit(c.args.expert_tensor_parallel_num_weight_shards, c.etp, "expert");
     }},
    {"A38", weight_shard_checkpoint},
    {"A39", experts_divide},
    {"A40",
     [](const Case& c) {
       return forbid(
           c.checkpoint() == "torch_dcp" && (!c.args.use_torch_fsdp2 || c.tp > 1 || c.pp > 1),
           "--ckpt-format torch_dcp without FSDP2 or with tp or pp above 1",
           "--use-torch-fsdp2 with tp 1 and pp 1, or --ckpt-format torch_dist");
     }},
    {"A41",
     [](const Case& c) {
       return forbid(c.checkpoint() == "fsdp_dtensor" && !c.args.use_megatron_fsdp,
                     "--ckpt-format fsdp_dtensor without --use-megatron-fsdp",
                     "--ckpt-format torch_dist");
     }},
    {"A42",
     [](const Case& c) {
       const bool emerging = c.optimizer() != "adam" && c.optimizer() != "sgd";
       return forbid(
           emerging && c.checkpoint() != "torch" && c.checkpoint() != "torch_dist",
           fmt::format("--optimizer {} with --ckpt-format {}", c.optimizer(), c.checkpoint()),
           "--ckpt-format torch or torch_dist");
     }},
    {"A43",
     [](const Case& c) {
       return forbid(c.args.fake_process_group && c.args.moe_token_dispatcher_type == "flex",
                     "--fake-process-group with the flex token dispatcher",
                     "--moe-token-dispatcher-type alltoall or allgather");
     }},
    {"A44",
     [](const Case& c) {
       const auto kind = c.args.position_embedding_type.value_or("learned_absolute");
       return forbid(c.args.mtp_num_layers.value_or(0) > 0 && kind != "rope" && kind != "none",
                     fmt::format("prediction layers with {} positions", kind),
                     "--position-embedding-type rope or none");
     }},
    {"A45",
     [](const Case& c) {
       return forbid(c.args.multi_latent_attention && c.args.group_query_attention,
                     "both --multi-latent-attention and --group-query-attention", "one of them");
     }},
};

}  // namespace

std::span<const MegatronRule> megatron_argument_rules() { return kRules; }

}  // namespace meshwright
