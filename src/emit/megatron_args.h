#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright {

/// An option of the command line that carries no rule of ours, kept so that it can be printed back.
struct OtherOption {
  std::string flag;  ///< With its leading dashes.
  std::vector<std::string> values;

  friend bool operator==(const OtherOption&, const OtherOption&) = default;
};

/// The options of Megatron-LM that decide whether a parallel layout is legal. A field has the name
/// of its option; an empty field means that the option is not given and Megatron's default holds.
/// Names and defaults are those of Megatron-LM 0.20.0-dev (d98e8a64).
struct MegatronArgs {
  using Int = std::int64_t;
  using OptInt = std::optional<std::int64_t>;
  using OptString = std::optional<std::string>;

  // Model
  OptInt num_layers, encoder_num_layers;
  OptInt hidden_size, ffn_hidden_size, num_attention_heads, kv_channels;
  bool group_query_attention = false;
  OptInt num_query_groups;
  bool multi_latent_attention = false;
  OptInt seq_length, encoder_seq_length, decoder_seq_length, max_position_embeddings;
  OptString position_embedding_type;
  bool swiglu = false;
  bool disable_bias_linear = false;
  bool untie_embeddings_and_output_weights = false;
  OptInt mtp_num_layers;
  OptString transformer_impl;
  bool bf16 = false, fp16 = false;

  // Mixture of experts
  OptInt num_experts, moe_ffn_hidden_size, moe_shared_expert_intermediate_size;
  OptString moe_token_dispatcher_type;
  bool moe_grouped_gemm = false;
  bool moe_shared_expert_overlap = false;

  // Batch and length of the run
  OptInt micro_batch_size, global_batch_size;
  OptInt eval_micro_batch_size, eval_global_batch_size;
  bool decrease_batch_size_if_needed = false;
  OptInt train_iters, train_samples;
  OptInt lr_decay_iters, lr_decay_samples;
  OptInt lr_warmup_iters, lr_warmup_samples;
  std::optional<double> lr_warmup_fraction;
  bool skip_train = false;

  // Tensor, pipeline, context and expert parallelism
  Int tensor_model_parallel_size = 1;
  bool sequence_parallel = false;
  OptInt tensor_parallel_num_weight_shards;
  bool tp_comm_overlap = false;
  Int pipeline_model_parallel_size = 1;
  OptInt num_layers_per_virtual_pipeline_stage, num_virtual_stages_per_pipeline_rank;
  OptString pipeline_model_parallel_layout;
  OptInt decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  OptInt microbatch_group_size_per_virtual_pipeline_stage;
  bool no_overlap_p2p_communication = false;
  bool defer_embedding_wgrad_compute = false;
  Int context_parallel_size = 1;
  std::vector<std::string> cp_comm_type;  ///< Empty: p2p.
  std::vector<std::int64_t> hierarchical_context_parallel_sizes;
  Int expert_model_parallel_size = 1;
  OptInt expert_tensor_parallel_size;  ///< Default: the tensor-parallel size.
  OptInt expert_tensor_parallel_num_weight_shards;
  bool overlap_moe_expert_parallel_comm = false;
  bool use_tp_pp_dp_mapping = false;
  bool fake_process_group = false;

  // Data parallelism and state sharding
  OptString optimizer;  ///< Default: adam.
  bool use_distributed_optimizer = false;
  Int num_distributed_optimizer_instances = 1;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool overlap_param_gather_with_optimizer_step = false;
  bool no_gradient_accumulation_fusion = false;
  bool use_megatron_fsdp = false;
  Int megatron_fsdp_version = 1;
  OptString data_parallel_sharding_strategy;
  bool use_torch_fsdp2 = false;
  OptString ckpt_format;  ///< Default: torch_dist.

  // Recomputation and offload
  bool recompute_activations = false;
  OptString recompute_granularity, recompute_method;
  OptInt recompute_num_layers;
  std::vector<std::string> recompute_modules;  ///< Empty: core_attn.
  bool distribute_saved_activations = false;
  Int cpu_offloading_num_layers = 0;

  /// Everything else, in the order given. A flag must begin with `--`.
  std::vector<OtherOption> other;

  /// The option `flag` among `other`, if it is there.
  const OtherOption* find_other(std::string_view flag) const;

  friend bool operator==(const MegatronArgs&, const MegatronArgs&) = default;
};

/// Reads `--flag`, `--flag value`, `--flag=value` and, for list options, `--flag v1 v2 ...` words.
/// The last of several equal options wins, as in Megatron. Unknown options go to `other` with the
/// words up to the next option. Throws Error, with the option as its place, for a missing,
/// superfluous or bad value and for a word that belongs to no option. Sizes and counts are bounded.
MegatronArgs parse_megatron_args(std::span<const std::string> words);

/// The words that parse_megatron_args reads back as `args`; options at their default are left out.
std::vector<std::string> to_argv(const MegatronArgs& args);

/// A whole command: environment, launcher and options.
struct MegatronCommand {
  std::map<std::string, std::string> env;  ///< From leading `KEY=VALUE` words.
  std::vector<std::string> launcher;       ///< Words before and including the script, may be empty.
  /// Number of ranks: from torchrun's `--nproc-per-node` and `--nnodes`, else from `WORLD_SIZE`;
  /// empty when neither says a number.
  std::optional<std::int64_t> world_size;
  MegatronArgs args;
};

/// Reads `KEY=VALUE ... torchrun --nproc-per-node 8 ... pretrain_gpt.py --flag ...`; environment,
/// launcher and script may be missing. Throws Error as parse_megatron_args and split_shell_words
/// do.
MegatronCommand parse_megatron_command(std::string_view line);
MegatronCommand parse_megatron_command(std::span<const std::string> words);

/// Largest number of ranks that is accepted anywhere.
inline constexpr std::int64_t kMaxMegatronWorld = std::int64_t{1} << 24;

}  // namespace meshwright
