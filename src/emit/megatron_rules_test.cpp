#include "emit/megatron_rules.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace meshwright {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Env = std::map<std::string, std::string>;

constexpr std::string_view kModel =
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --train-iters 10 --bf16 ";

MegatronVerdict check(std::string_view options, std::int64_t world, const Env& env = {}) {
  const auto command = parse_megatron_command(fmt::format("{} {}", kModel, options));
  return check_megatron(command.args, world, env);
}

const MegatronFinding* find(const std::vector<MegatronFinding>& findings, std::string_view rule) {
  const auto found = std::ranges::find(findings, rule, &MegatronFinding::rule);
  return found == findings.end() ? nullptr : &*found;
}

std::string rules_of(const std::vector<MegatronFinding>& findings) {
  std::string text;
  for (const auto& f : findings) text += fmt::format("{}: {} ({}); ", f.rule, f.message, f.legal);
  return text;
}

/// Expects exactly the one violation, with these texts.
void expect_violation(const MegatronVerdict& verdict, std::string_view rule,
                      const std::string& message, const std::string& legal) {
  ASSERT_EQ(verdict.violations.size(), 1u) << rules_of(verdict.violations);
  EXPECT_EQ(verdict.violations[0].rule, rule);
  EXPECT_EQ(verdict.violations[0].message, message);
  EXPECT_EQ(verdict.violations[0].legal, legal);
  EXPECT_FALSE(verdict.final_ok);
}

/// The rule of ours that stands for Megatron's reason, recognised by a few of its words.
std::string_view rule_of_reason(const std::string& why) {
  constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
      {"is not divisible by total_model_size", "A2"},
      {"eval_global_batch_size", "A7"},
      {"length of pipeline_model_parallel_layout", "A9"},
      {"Number of layers should be divisible", "A11"},
      {"number of layers of the model must be divisible", "A11"},
      {"number of layers per pipeline stage", "A12"},
      {"interleaved schedule is used", "A13"},
      {"--overlap-param-gather only supported", "A14"},
      {"Must use --overlap-param-gather", "A15"},
      {"not supported with pipeline parallelism", "A17"},
      {"not supported with expert parallelism", "A18"},
      {"not supported with MCore's distributed", "A19"},
      {"only across tensor model parallel groups", "A33"},
      {"recompute activations to work", "A33"},
      {"recompute method is not yet supported", "A34"},
      {"num_experts must be non None", "A39"},
      {"Number of experts should be a multiple", "A39"},
      {"num_attention_heads", "B1"},
      {"num_query_groups", "B2"},
      {"must match num_layers", "B4"},
      {"last layer must be loss", "B4"},
      {"first layer must be embedding", "B4"},
      {"number of layers at first stage", "B5"},
      {"number of layers at last stage", "B6"},
      {"Mismatch:", "B7"},
      {"number of layers at middle stage", "B7"},
      {"number of layers on each middle", "B7"},
      {"so recompute_method must be", "B9"},
      {"recompute_num_layers must be", "B9"},
      {"distribute_saved_activations", "B10"},
  };
  for (const auto& [words, rule] : kReasons)
    if (why.find(words) != std::string::npos) return rule;
  return {};
}

// Megatron's own verdict on 1,000 random configurations.
TEST(MegatronRules, AgreesWithMegatronOnEveryRecordedRow) {
  const auto path =
      std::filesystem::path(MESHWRIGHT_REFERENCE_DATA) / "engines/megatron_accept.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference data at " << path;
  std::ifstream file(path);
  std::size_t rows = 0, tables = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json row = parse_json(line, "row");
    const auto text = row.at("argv").get<std::string>();
    const auto command = parse_megatron_command(text);
    const auto verdict =
        check_megatron(command.args, row.at("world").get<std::int64_t>(), row.at("env").get<Env>());
    SCOPED_TRACE(fmt::format("row {}: {} world {}\nMegatron: {}\nours: {}", rows, text,
                             row.at("world").get<int>(), row.at("why").get<std::string>(),
                             rules_of(verdict.violations)));
    ASSERT_EQ(verdict.args_ok, row.at("args_ok").get<bool>());
    ASSERT_EQ(verdict.final_ok, row.at("final_ok").get<bool>());
    ASSERT_EQ(verdict.final_ok, verdict.violations.empty());
    if (!verdict.args_ok) {
      // Megatron stops at the first broken rule; it must be among those we report.
      const auto rule = rule_of_reason(row.at("why").get<std::string>());
      EXPECT_NE(find(verdict.violations, rule), nullptr) << "expected rule `" << rule << "`";
      continue;
    }
    EXPECT_EQ(verdict.groups_ok, row.at("pstate_ok").get<bool>());
    EXPECT_EQ(verdict.build_ok, row.at("build_ok").get<bool>());
    EXPECT_EQ(verdict.micro_batches, row.at("M").get<std::int64_t>());
    if (row.at("sched_ok").is_boolean()) {
      EXPECT_EQ(verdict.schedule_ok, row.at("sched_ok").get<bool>());
    }
    if (row.contains("layers")) {
      EXPECT_EQ(verdict.layers, row.at("layers").get<LayerTable>());
      ++tables;
    }
  }
  EXPECT_EQ(rows, 1000u);
  EXPECT_EQ(tables, 314u);
}

TEST(MegatronRules, AcceptsAnOrdinaryRun) {
  const auto verdict = check(
      "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 "
      "--sequence-parallel --use-distributed-optimizer --global-batch-size 64",
      16);
  EXPECT_TRUE(verdict.final_ok) << rules_of(verdict.violations);
  EXPECT_THAT(verdict.would_misbehave, IsEmpty());
  EXPECT_THAT(verdict.warnings, IsEmpty());
  EXPECT_EQ(verdict.data_parallel, 2);
  EXPECT_EQ(verdict.micro_batches, 32);
  EXPECT_THAT(verdict.layers, ElementsAre(ElementsAre(16), ElementsAre(16)));
}

TEST(MegatronRules, NamesTheLegalTensorParallelSizes) {
  const auto heads = [](int n, int tp) {
    return check(fmt::format("--num-attention-heads {} --kv-channels 128 --ffn-hidden-size 8400 "
                             "--tensor-model-parallel-size {}",
                             n, tp),
                 tp);
  };
  // deepspeedai/DeepSpeed#3634, THU-KEG/AdaptThink#1, MIV-XJTU/FSDrive#21, vllm-project/vllm#52535.
  expect_violation(heads(52, 8), "B1", "52 attention heads do not divide by tp = 8",
                   "heads = 52: legal tp are 1, 2, 4, 13, 26, 52");
  expect_violation(heads(28, 8), "B1", "28 attention heads do not divide by tp = 8",
                   "heads = 28: legal tp are 1, 2, 4, 7, 14, 28");
  expect_violation(heads(12, 8), "B1", "12 attention heads do not divide by tp = 8",
                   "heads = 12: legal tp are 1, 2, 3, 4, 6, 12");
  expect_violation(heads(64, 3), "B1", "64 attention heads do not divide by tp = 3",
                   "heads = 64: legal tp are 1, 2, 4, 8, 16, 32, 64");
}

TEST(MegatronRules, EveryBrokenRuleIsReported) {
  const auto verdict = check(
      "--tensor-model-parallel-size 3 --overlap-param-gather "
      "--use-torch-fsdp2 --expert-model-parallel-size 2",
      8);
  EXPECT_FALSE(verdict.args_ok);
  for (const auto* rule : {"A2", "A14", "A15", "A18", "A20", "A22", "A39", "B1", "C1"})
    EXPECT_NE(find(verdict.violations, rule), nullptr)
        << rule << ": " << rules_of(verdict.violations);
}

TEST(MegatronRules, Arguments) {
  expect_violation(check("--tensor-model-parallel-size 4", 6), "A2",
                   "world size 6 is not divisible by tp 4 x pp 1 x cp 1",
                   "their product must divide 6: 1, 2, 3, 6");
  const auto batch = check("--global-batch-size 7", 8);
  ASSERT_NE(find(batch.violations, "A7"), nullptr);
  EXPECT_EQ(find(batch.violations, "A7")->message,
            "global batch 7 (evaluation) is not divisible by micro batch 1 x data parallel 8");
  EXPECT_EQ(find(batch.violations, "A7")->legal, "legal are multiples of 8, next 8");

  expect_violation(check("--context-parallel-size 3", 3), "A31",
                   "sequence length 2048 is no multiple of 2 x cp = 6",
                   "legal cp are 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024");
  expect_violation(check("--max-position-embeddings 1024", 1), "A32",
                   "max-position-embeddings 1024 are fewer than the sequence length 2048",
                   "2048 or more");
  expect_violation(check("--num-experts 6 --expert-model-parallel-size 4 --disable-bias-linear", 4),
                   "A39", "6 experts do not divide by ep = 4",
                   "experts = 6: legal ep are 1, 2, 3, 6");
  expect_violation(check("--train-samples 100", 1), "A28",
                   "--train-samples does not go with --train-iters",
                   "count a run either in iterations or in samples");
  expect_violation(check("--batch-size 4", 1), "A5", "--batch-size is no longer an option",
                   "use --micro-batch-size");
  expect_violation(check("--context-parallel-size 4 --cp-comm-type a2a+p2p", 4), "A4",
                   "cp-comm-type a2a+p2p without --hierarchical-context-parallel-sizes",
                   "give the sizes of the a2a and the p2p groups");
  expect_violation(check("--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 4", 4),
                   "A3", "the product of hierarchical-context-parallel-sizes 2 x 4 is not cp = 4",
                   "sizes whose product is 4");
}

TEST(MegatronRules, MissingModelOptionsAreNamedTogether) {
  const auto verdict = check_megatron(MegatronArgs{}, 1, {});
  ASSERT_EQ(verdict.violations.size(), 1u);
  EXPECT_EQ(verdict.violations[0].message,
            "--num-layers, --hidden-size, --num-attention-heads, --max-position-embeddings, "
            "--micro-batch-size, --seq-length are missing");
}

TEST(MegatronRules, PipelineSplits) {
  // NVIDIA/Megatron-LM#1304: older versions built 28 of these 30 layers.
  expect_violation(
      check("--num-layers 30 --pipeline-model-parallel-size 4 --global-batch-size 8", 4), "A11",
      "30 layers do not divide by pp = 4",
      "legal pp are 1, 2, 3, 5, 6, 10, 15, 30; or give an uneven split with "
      "--pipeline-model-parallel-layout");
  // NVIDIA/Megatron-LM#1778: older versions built a single layer.
  expect_violation(check("--num-layers 20 --decoder-last-pipeline-num-layers 1", 1), "B7",
                   "19 layers are left for 0 middle pipeline ranks",
                   "first + last + an equal share for every middle rank must give num-layers");
  expect_violation(check("--pipeline-model-parallel-size 2 --global-batch-size 8 "
                         "--pipeline-model-parallel-layout Et*15|t*16L",
                         2),
                   "B4", "pipeline layout: the layout holds 31 decoder layers, num-layers is 32",
                   "E first and L last, once each, and 32 t between them");
  expect_violation(check("--pipeline-model-parallel-size 2 --global-batch-size 8 "
                         "--pipeline-model-parallel-layout Et*15|t*16|tL",
                         2),
                   "A9", "the pipeline layout has 3 stages, no multiple of pp = 2",
                   "stages = 3: legal pp are 1, 3");
  expect_violation(check("--pipeline-model-parallel-size 4 --global-batch-size 8 "
                         "--num-virtual-stages-per-pipeline-rank 3",
                         4),
                   "D2", "8 layers per pipeline rank do not divide by 3 virtual stages",
                   "legal virtual stages are 1, 2, 4, 8; or give a layout");
  const auto accounted = check(
      "--num-layers 30 --pipeline-model-parallel-size 4 --global-batch-size 8 "
      "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
      4);
  EXPECT_TRUE(accounted.final_ok) << rules_of(accounted.violations);
  EXPECT_THAT(accounted.layers,
              ElementsAre(ElementsAre(7), ElementsAre(8), ElementsAre(8), ElementsAre(7)));
}

TEST(MegatronRules, ProcessGroups) {
  expect_violation(check("--num-experts 8 --expert-model-parallel-size 8 --disable-bias-linear", 4),
                   "C1", "world size 4 is not divisible by expert tp 1 x ep 8 x pp 1",
                   "their product must divide 4: 1, 2, 4");
  const auto dense_cp = check(
      "--pipeline-model-parallel-size 2 --context-parallel-size 2 "
      "--use-tp-pp-dp-mapping --global-batch-size 8",
      8);
  ASSERT_NE(find(dense_cp.violations, "C2"), nullptr) << rules_of(dense_cp.violations);
  expect_violation(check("--num-distributed-optimizer-instances 3 --use-distributed-optimizer", 8),
                   "C3", "data parallel 8 x cp 1 does not divide by 3 optimizer instances",
                   "legal instances are 1, 2, 4, 8");
}

TEST(MegatronRules, InterleavedScheduleNeedsEnoughMicroBatches) {
  // pytorch/torchtitan#775: fewer micro-batches than stages hang or stop.
  const std::string options =
      "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 ";
  expect_violation(check(options + "--global-batch-size 3", 4), "F1",
                   "3 micro-batches are fewer than a group of 4 in an interleaved pipeline",
                   "global batch of 4 or more, or no virtual stages");
  expect_violation(check(options + "--global-batch-size 6", 4), "F2",
                   "the last of 6 micro-batches in groups of 4 form a group of 2, less than pp = 4",
                   "micro-batches a multiple of 4, next 4 or 8");
  EXPECT_TRUE(check(options + "--global-batch-size 8", 4).final_ok);
  EXPECT_TRUE(check(options + "--global-batch-size 9 "
                              "--microbatch-group-size-per-virtual-pipeline-stage 5",
                    4)
                  .final_ok);
}

TEST(MegatronRules, ConnectionsVariable) {
  const std::string tp = "--tensor-model-parallel-size 2";
  EXPECT_TRUE(check(tp, 2).final_ok);
  EXPECT_EQ(check(tp, 2).required_env, (Env{{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}));
  EXPECT_THAT(check(tp, 2, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}).required_env, IsEmpty());
  EXPECT_THAT(check("", 2).required_env, IsEmpty());
  expect_violation(check(tp, 2, {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}), "A36",
                   "tp = 2, cp = 1 with CUDA_DEVICE_MAX_CONNECTIONS=32",
                   "CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell when tp or cp is above 1");
  const std::string fsdp = "--use-megatron-fsdp --ckpt-format fsdp_dtensor";
  EXPECT_TRUE(check(fsdp, 2).final_ok);
  expect_violation(check(fsdp, 2, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}), "A36",
                   "FSDP with CUDA_DEVICE_MAX_CONNECTIONS=1", "unset it or set it above 1");

  const auto blackwell = parse_megatron_command(fmt::format("{} {}", kModel, tp)).args;
  EXPECT_TRUE(check_megatron(blackwell, 2, {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}},
                             {.compute_capability = 10})
                  .final_ok);
}

TEST(MegatronRules, WeightShards) {
  const auto verdict = check(
      "--tensor-parallel-num-weight-shards 4 --tensor-model-parallel-size 2 "
      "--global-batch-size 8",
      8);
  EXPECT_TRUE(verdict.final_ok) << rules_of(verdict.violations);
  EXPECT_EQ(verdict.data_parallel, 2);
  EXPECT_EQ(verdict.micro_batches, 2);
  expect_violation(check("--tensor-parallel-num-weight-shards 3 --tensor-model-parallel-size 2", 2),
                   "A1", "dense weight shards = 3 are no multiple of dense tp = 2",
                   "legal are 2 or 4");
}

TEST(MegatronCautions, LayersLostSilently) {
  // Accepted by Megatron 0.20: both ends together hold more layers than the model has.
  const auto verdict = check(
      "--num-layers 10 --pipeline-model-parallel-size 4 --global-batch-size 16 "
      "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6",
      4);
  EXPECT_TRUE(verdict.final_ok) << rules_of(verdict.violations);
  EXPECT_THAT(verdict.layers,
              ElementsAre(ElementsAre(6), ElementsAre(-1), ElementsAre(-1), ElementsAre(6)));
  ASSERT_NE(find(verdict.would_misbehave, "W1"), nullptr);
  EXPECT_EQ(find(verdict.would_misbehave, "W1")->message,
            "num-layers is 10 but the stages build 12 (a stage is assigned -1 layers)");

  const auto single = check(
      "--num-layers 20 --decoder-first-pipeline-num-layers 5 "
      "--decoder-last-pipeline-num-layers 1",
      1);
  EXPECT_TRUE(single.final_ok) << rules_of(single.violations);
  ASSERT_NE(find(single.would_misbehave, "W1"), nullptr);
  EXPECT_EQ(find(single.would_misbehave, "W1")->message, "num-layers is 20 but the stages build 1");
}

TEST(MegatronCautions, QueryGroupsMustDivideHeads) {
  // NVIDIA/Megatron-LM#5755.
  const auto five = check("--group-query-attention --num-query-groups 5", 1);
  EXPECT_TRUE(five.final_ok) << rules_of(five.violations);
  ASSERT_NE(find(five.would_misbehave, "W2"), nullptr);
  EXPECT_EQ(find(five.would_misbehave, "W2")->message,
            "32 attention heads in 5 query groups: the first forward pass stops");
  EXPECT_EQ(find(five.would_misbehave, "W2")->legal,
            "heads = 32: legal query groups are 1, 2, 4, 8, 16, 32");
  const auto none = check("--group-query-attention --num-query-groups 0", 1);
  EXPECT_TRUE(none.final_ok);
  EXPECT_NE(find(none.would_misbehave, "W2"), nullptr);
}

TEST(MegatronCautions, TheRest) {
  const auto caution = [](std::string_view options, std::int64_t world, std::string_view rule) {
    const auto verdict = check(options, world);
    EXPECT_TRUE(verdict.final_ok) << rules_of(verdict.violations);
    const auto* finding = find(verdict.would_misbehave, rule);
    return finding == nullptr ? std::string("none") : finding->message;
  };
  EXPECT_EQ(caution("--pipeline-model-parallel-size 8 --global-batch-size 2", 8, "W3"),
            "2 micro-batches never fill 8 pipeline stages: at least 78 % of the time is idle");
  EXPECT_EQ(caution("--sequence-parallel", 1, "W4"),
            "--sequence-parallel is dropped silently with tp = 1");
  EXPECT_EQ(
      caution("--num-experts 8 --disable-bias-linear --tensor-model-parallel-size 2", 2, "W4"),
      "experts with tp = 2 but no --sequence-parallel: the first forward pass stops");
  EXPECT_EQ(
      caution("--recompute-granularity full --recompute-method block --recompute-num-layers 9 "
              "--pipeline-model-parallel-size 8 --global-batch-size 8",
              8, "W5"),
      "--recompute-num-layers 9 on stages of at most 4 layers");
  EXPECT_EQ(caution("--ffn-hidden-size 11007 --tensor-model-parallel-size 2", 2, "W6"),
            "ffn-hidden-size 11007 does not divide by tp = 2");
  EXPECT_EQ(caution("--context-parallel-size 2 --transformer-impl local", 2, "W7"),
            "cp = 2 with --transformer-impl local, whose attention has none");
  EXPECT_EQ(
      caution("--context-parallel-size 8 --cp-comm-type a2a --group-query-attention "
              "--num-query-groups 4",
              8, "W7"),
      "all-to-all context parallelism splits 32 heads and 4 key-value heads per rank over cp = 8");
  EXPECT_EQ(caution("--num-query-groups 4", 1, "W8"),
            "--num-query-groups 4 is ignored without --group-query-attention");
  EXPECT_EQ(
      caution("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
              "--global-batch-size 8 --eval-global-batch-size 2",
              4, "W9"),
      "2 micro-batches of evaluation do not fit the interleaved schedule: it stops at the first "
      "evaluation");
}

TEST(MegatronRules, WarnsOfWhatIsNotChecked) {
  const auto verdict = check(
      "--lr 1e-4 --tensor_model_parallel_size 8 --data-path a b "
      "--hybrid-layer-pattern M*M-",
      1);
  EXPECT_TRUE(verdict.final_ok);
  EXPECT_THAT(
      verdict.warnings,
      ElementsAre("--tensor_model_parallel_size is not known; is "
                  "--tensor-model-parallel-size meant?",
                  "--hybrid-layer-pattern changes the model or the batch in ways that are not "
                  "checked",
                  "options without a rule, not checked: --lr --data-path"));
}

TEST(MegatronRules, ExtremeSizesDoNotOverflow) {
  const auto verdict = check(
      "--tensor-model-parallel-size 1048576 --pipeline-model-parallel-size "
      "1048576 --context-parallel-size 1048576 --expert-model-parallel-size "
      "1048576 --micro-batch-size 1048576 --global-batch-size 1000000000 "
      "--num-layers 100000 --hidden-size 1000000000",
      kMaxMegatronWorld);
  EXPECT_FALSE(verdict.final_ok);
  EXPECT_NE(find(verdict.violations, "A2"), nullptr);
  EXPECT_THROW(check("", 0), Error);
  EXPECT_THROW(check("", kMaxMegatronWorld + 1), Error);
}

}  // namespace
}  // namespace meshwright
