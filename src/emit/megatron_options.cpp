#include "emit/megatron_options.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace meshwright {
namespace {

using A = MegatronArgs;

// Bounds on the values. They are far above any real run and keep every product of a few of them,
// and every table made from them, small enough to compute with.
constexpr std::int64_t kDegree = std::int64_t{1} << 20;
constexpr std::int64_t kLayers = 100'000;
constexpr std::int64_t kSize = 1'000'000'000;
constexpr std::int64_t kBatch = 1'000'000'000;
constexpr std::int64_t kSteps = 1'000'000'000'000'000;

const MegatronOption kOptions[] = {
    {"--num-layers", &A::num_layers, 1, kLayers},
    {"--encoder-num-layers", &A::encoder_num_layers, 1, kLayers},
    {"--hidden-size", &A::hidden_size, 1, kSize},
    {"--ffn-hidden-size", &A::ffn_hidden_size, 1, kSize},
    {"--num-attention-heads", &A::num_attention_heads, 1, kSize},
    {"--kv-channels", &A::kv_channels, 1, kSize},
    {"--group-query-attention", &A::group_query_attention},
    {"--num-query-groups", &A::num_query_groups, 0, kSize},
    {"--multi-latent-attention", &A::multi_latent_attention},
    {"--seq-length", &A::seq_length, 1, kSize},
    {"--encoder-seq-length", &A::encoder_seq_length, 1, kSize},
    {"--decoder-seq-length", &A::decoder_seq_length, 1, kSize},
    {"--max-position-embeddings", &A::max_position_embeddings, 1, kSize},
    {"--position-embedding-type", &A::position_embedding_type, 0, 0,
     "learned_absolute rope yarn mrope relative none"},
    {"--swiglu", &A::swiglu},
    {"--disable-bias-linear", &A::disable_bias_linear},
    {"--untie-embeddings-and-output-weights", &A::untie_embeddings_and_output_weights},
    {"--mtp-num-layers", &A::mtp_num_layers, 0, kLayers},
    {"--transformer-impl", &A::transformer_impl, 0, 0,
     "local transformer_engine inference_optimized"},
    {"--bf16", &A::bf16},
    {"--fp16", &A::fp16},

    {"--num-experts", &A::num_experts, 0, kDegree},
    {"--moe-ffn-hidden-size", &A::moe_ffn_hidden_size, 1, kSize},
    {"--moe-shared-expert-intermediate-size", &A::moe_shared_expert_intermediate_size, 1, kSize},
    {"--moe-token-dispatcher-type", &A::moe_token_dispatcher_type, 0, 0, "allgather alltoall flex"},
    {"--moe-grouped-gemm", &A::moe_grouped_gemm},
    {"--moe-shared-expert-overlap", &A::moe_shared_expert_overlap},

    {"--micro-batch-size", &A::micro_batch_size, 1, kDegree},
    {"--global-batch-size", &A::global_batch_size, 1, kBatch},
    {"--eval-micro-batch-size", &A::eval_micro_batch_size, 1, kDegree},
    {"--eval-global-batch-size", &A::eval_global_batch_size, 1, kBatch},
    {"--decrease-batch-size-if-needed", &A::decrease_batch_size_if_needed},
    {"--train-iters", &A::train_iters, 0, kSteps},
    {"--train-samples", &A::train_samples, 0, kSteps},
    {"--lr-decay-iters", &A::lr_decay_iters, 0, kSteps},
    {"--lr-decay-samples", &A::lr_decay_samples, 0, kSteps},
    {"--lr-warmup-iters", &A::lr_warmup_iters, 0, kSteps},
    {"--lr-warmup-samples", &A::lr_warmup_samples, 0, kSteps},
    {"--lr-warmup-fraction", &A::lr_warmup_fraction},
    {"--skip-train", &A::skip_train},

    {"--tensor-model-parallel-size", &A::tensor_model_parallel_size, 1, kDegree},
    {"--sequence-parallel", &A::sequence_parallel},
    {"--tensor-parallel-num-weight-shards", &A::tensor_parallel_num_weight_shards, 1, kDegree},
    {"--tp-comm-overlap", &A::tp_comm_overlap},
    {"--pipeline-model-parallel-size", &A::pipeline_model_parallel_size, 1, kDegree},
    {"--num-layers-per-virtual-pipeline-stage", &A::num_layers_per_virtual_pipeline_stage, 1,
     kLayers},
    {"--num-virtual-stages-per-pipeline-rank", &A::num_virtual_stages_per_pipeline_rank, 1,
     kLayers},
    {"--pipeline-model-parallel-layout", &A::pipeline_model_parallel_layout},
    {"--decoder-first-pipeline-num-layers", &A::decoder_first_pipeline_num_layers, 0, kLayers},
    {"--decoder-last-pipeline-num-layers", &A::decoder_last_pipeline_num_layers, 0, kLayers},
    {"--account-for-embedding-in-pipeline-split", &A::account_for_embedding_in_pipeline_split},
    {"--account-for-loss-in-pipeline-split", &A::account_for_loss_in_pipeline_split},
    {"--microbatch-group-size-per-virtual-pipeline-stage",
     &A::microbatch_group_size_per_virtual_pipeline_stage, 1, kBatch},
    {"--no-overlap-p2p-communication", &A::no_overlap_p2p_communication},
    {"--defer-embedding-wgrad-compute", &A::defer_embedding_wgrad_compute},
    {"--context-parallel-size", &A::context_parallel_size, 1, kDegree},
    {"--cp-comm-type", &A::cp_comm_type},
    {"--hierarchical-context-parallel-sizes", &A::hierarchical_context_parallel_sizes, 1, kDegree},
    {"--expert-model-parallel-size", &A::expert_model_parallel_size, 1, kDegree},
    {"--expert-tensor-parallel-size", &A::expert_tensor_parallel_size, 1, kDegree},
    {"--expert-tensor-parallel-num-weight-shards", &A::expert_tensor_parallel_num_weight_shards, 1,
     kDegree},
    {"--overlap-moe-expert-parallel-comm", &A::overlap_moe_expert_parallel_comm},
    {"--use-tp-pp-dp-mapping", &A::use_tp_pp_dp_mapping},
    {"--fake-process-group", &A::fake_process_group},

    {"--optimizer", &A::optimizer, 0, 0, "adam sgd muon dist_muon lion soap adaptive_muon"},
    {"--use-distributed-optimizer", &A::use_distributed_optimizer},
    {"--num-distributed-optimizer-instances", &A::num_distributed_optimizer_instances, 1, kDegree},
    {"--overlap-grad-reduce", &A::overlap_grad_reduce},
    {"--overlap-param-gather", &A::overlap_param_gather},
    {"--overlap-param-gather-with-optimizer-step", &A::overlap_param_gather_with_optimizer_step},
    {"--no-gradient-accumulation-fusion", &A::no_gradient_accumulation_fusion},
    {"--use-megatron-fsdp", &A::use_megatron_fsdp},
    {"--megatron-fsdp-version", &A::megatron_fsdp_version, 1, 2},
    {"--data-parallel-sharding-strategy", &A::data_parallel_sharding_strategy, 0, 0,
     "no_shard optim optim_grads optim_grads_params"},
    {"--use-torch-fsdp2", &A::use_torch_fsdp2},
    {"--ckpt-format", &A::ckpt_format, 0, 0, "torch torch_dist torch_dcp fsdp_dtensor"},

    {"--recompute-activations", &A::recompute_activations},
    {"--recompute-granularity", &A::recompute_granularity, 0, 0, "full selective"},
    {"--recompute-method", &A::recompute_method, 0, 0, "uniform block"},
    {"--recompute-num-layers", &A::recompute_num_layers, 0, kLayers},
    {"--recompute-modules", &A::recompute_modules},
    {"--distribute-saved-activations", &A::distribute_saved_activations},
    {"--cpu-offloading-num-layers", &A::cpu_offloading_num_layers, 0, kLayers},
};

/// Longest flag that is worth a guess; it also bounds the work on hostile input.
constexpr std::size_t kLongestGuess = 80;

/// Levenshtein's edit distance; both texts are at most kLongestGuess characters long.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::array<std::size_t, kLongestGuess + 1> row{};
  std::iota(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(b.size()) + 1, std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const MegatronOption> megatron_options() { return kOptions; }

const MegatronOption* find_megatron_option(std::string_view flag) {
  const auto found = std::ranges::find(kOptions, flag, &MegatronOption::flag);
  return found == std::end(kOptions) ? nullptr : &*found;
}

std::string_view similar_megatron_flag(std::string_view flag) {
  if (flag.size() > kLongestGuess) return {};
  std::string spelled(flag);
  std::ranges::replace(spelled, '_', '-');
  std::size_t best = spelled.size() / 8 + 1;  // short flags are easily close to one another
  std::string_view similar;
  for (const auto& option : kOptions) {
    const std::size_t distance = edit_distance(spelled, option.flag);
    if (distance < best) {
      best = distance;
      similar = option.flag;
    }
  }
  return similar;
}

}  // namespace meshwright
