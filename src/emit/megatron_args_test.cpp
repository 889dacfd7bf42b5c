#include "emit/megatron_args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/error.h"
#include "emit/megatron_options.h"
#include "emit/shell_words.h"

namespace meshwright {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MegatronArgs parse(std::string_view line) { return parse_megatron_args(split_shell_words(line)); }

std::string parse_error(std::string_view line) {
  try {
    parse_megatron_command(line);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MegatronArgs, ReadsEveryKindOfOption) {
  const auto args = parse(
      "--num-layers 32 --tensor-model-parallel-size=8 --sequence-parallel "
      "--pipeline-model-parallel-layout 'Et|(tt|)*2tL' --recompute-modules mlp moe "
      "--hierarchical-context-parallel-sizes 2 4 --lr-warmup-fraction .01 "
      "--recompute-granularity selective");
  EXPECT_EQ(args.num_layers, 32);
  EXPECT_EQ(args.tensor_model_parallel_size, 8);
  EXPECT_TRUE(args.sequence_parallel);
  EXPECT_EQ(args.pipeline_model_parallel_layout, "Et|(tt|)*2tL");
  EXPECT_THAT(args.recompute_modules, ElementsAre("mlp", "moe"));
  EXPECT_THAT(args.hierarchical_context_parallel_sizes, ElementsAre(2, 4));
  EXPECT_EQ(args.lr_warmup_fraction, 0.01);
  EXPECT_EQ(args.recompute_granularity, "selective");
  EXPECT_THAT(args.other, IsEmpty());
}

TEST(MegatronArgs, KeepsUnknownOptions) {
  const auto args = parse(
      "--lr 1e-4 --num-layers 4 --data-path 0.5 a 0.5 b --threshold -1 --mock-data "
      "--title=x=y");
  EXPECT_EQ(args.num_layers, 4);
  EXPECT_THAT(args.other,
              ElementsAre(OtherOption{"--lr", {"1e-4"}},
                          OtherOption{"--data-path", {"0.5", "a", "0.5", "b"}},
                          OtherOption{"--threshold", {"-1"}}, OtherOption{"--mock-data", {}},
                          OtherOption{"--title", {"x=y"}}));
  EXPECT_NE(args.find_other("--mock-data"), nullptr);
  EXPECT_EQ(args.find_other("--num-layers"), nullptr);
}

TEST(MegatronArgs, OnlyNegativeNumbersAreValuesWithADash) {
  EXPECT_THAT(parse("--a -1 --b -1.5 -.5 --8 x").other,
              ElementsAre(OtherOption{"--a", {"-1"}}, OtherOption{"--b", {"-1.5", "-.5"}},
                          OtherOption{"--8", {"x"}}));
  for (const auto* word : {"-", "-x", "-1e4", "-1.", "-1-1"})
    EXPECT_THAT(parse_error(std::string("--a 1 ") + word), HasSubstr("belongs to no option"))
        << word;
}

TEST(MegatronArgs, TheLastOfEqualOptionsWins) {
  const auto args =
      parse("--num-layers 4 --num-layers 8 --recompute-modules a b --recompute-modules c");
  EXPECT_EQ(args.num_layers, 8);
  EXPECT_THAT(args.recompute_modules, ElementsAre("c"));
}

TEST(MegatronArgs, RefusesBadLines) {
  EXPECT_EQ(parse_error("--num-layers"), "--num-layers: needs a value");
  EXPECT_EQ(parse_error("--num-layers --bf16"), "--num-layers: needs a value");
  EXPECT_EQ(parse_error("--num-layers="), "--num-layers: \"\" is no whole number");
  EXPECT_EQ(parse_error("--num-layers 3.5"), "--num-layers: \"3.5\" is no whole number");
  EXPECT_EQ(parse_error("--num-layers 32x"), "--num-layers: \"32x\" is no whole number");
  EXPECT_EQ(
      parse_error("--num-layers $L"),
      "--num-layers: \"$L\" is no whole number (shell variables are not expanded here: put the "
      "value in their place)");
  EXPECT_EQ(parse_error("--num-layers 0"), "--num-layers: 0 is out of range (1 to 100000)");
  EXPECT_EQ(parse_error("--tensor-model-parallel-size -4"),
            "--tensor-model-parallel-size: -4 is out of range (1 to 1048576)");
  EXPECT_EQ(parse_error("--hidden-size 1000000000000"),
            "--hidden-size: 1000000000000 is out of range (1 to 1000000000)");
  EXPECT_EQ(parse_error("--hidden-size 99999999999999999999999"),
            "--hidden-size: 99999999999999999999999 is out of range (1 to 1000000000)");
  EXPECT_EQ(parse_error("--recompute-granularity partial"),
            "--recompute-granularity: \"partial\" is not a choice (legal: full, selective)");
  EXPECT_EQ(parse_error("--ckpt-format"),
            "--ckpt-format: needs a value (one of: torch torch_dist torch_dcp fsdp_dtensor)");
  EXPECT_EQ(parse_error("--lr-warmup-fraction nan"), "--lr-warmup-fraction: \"nan\" is no number");
  EXPECT_EQ(parse_error("--bf16=true"), "--bf16: takes no value, got \"true\"");
  EXPECT_EQ(parse_error("--bf16 true"),
            "word 2: \"true\" belongs to no option (options begin with --)");
  EXPECT_EQ(parse_error("--num-layers 4 5"),
            "word 3: \"5\" belongs to no option (options begin with --)");
  EXPECT_THAT(parse_error("--num-layers 4 -x"), HasSubstr("\"-x\" belongs to no option"));
  EXPECT_THAT(parse_error("--"), HasSubstr("\"--\" belongs to no option"));
  EXPECT_THAT(parse_error("--=3"), HasSubstr("belongs to no option"));
  EXPECT_EQ(parse_error("--recompute-modules"), "--recompute-modules: needs a value");
  EXPECT_THAT(parse_error("--hierarchical-context-parallel-sizes 2 x"),
              HasSubstr("\"x\" is no whole number"));
  EXPECT_THAT(parse_error("--num-layers 'a\x01" + std::string(200, 'b') + "'"),
              HasSubstr("\"a\\x01bbb"));
}

TEST(MegatronCommand, ReadsEnvironmentAndLauncher) {
  const auto command = parse_megatron_command(
      "CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG='a b' torchrun --nproc-per-node 8 --nnodes=4 \\\n"
      "  --rdzv-endpoint host:1 pretrain_gpt.py \\\n  --num-layers 4 --bf16 2>&1 | tee log.txt");
  EXPECT_THAT(command.env, ElementsAre(std::pair("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
                                       std::pair("NCCL_DEBUG", "a b")));
  EXPECT_EQ(command.world_size, 32);
  EXPECT_EQ(command.launcher.size(), 7u);
  EXPECT_EQ(command.launcher.back(), "pretrain_gpt.py");
  EXPECT_EQ(command.args.num_layers, 4);
  EXPECT_TRUE(command.args.bf16);
  EXPECT_THAT(command.args.other, IsEmpty());
}

TEST(MegatronCommand, WorldSize) {
  const auto world = [](std::string_view line) { return parse_megatron_command(line).world_size; };
  EXPECT_EQ(world("--num-layers 4"), std::nullopt);
  EXPECT_EQ(world("WORLD_SIZE=16 python pretrain_gpt.py --num-layers 4"), 16);
  EXPECT_EQ(world("export WORLD_SIZE=16 --num-layers 4"), 16);
  EXPECT_EQ(world("torchrun pretrain_gpt.py"), 1);
  EXPECT_EQ(world("python -m torch.distributed.run --nproc_per_node=2 --nnodes 3 p.py"), 6);
  EXPECT_EQ(world("torchrun --nproc-per-node 4 -m megatron.pretrain --bf16"), 4);
  EXPECT_EQ(world("torchrun --nproc-per-node gpu p.py"), std::nullopt);
  EXPECT_EQ(world("torchrun --nnodes 1:4 p.py"), std::nullopt);
}

TEST(MegatronCommand, RefusesBadLaunchers) {
  EXPECT_EQ(
      parse_error("torchrun --num-layers 4"),
      "command line: no training script behind \"torchrun\" (e.g. torchrun --nproc-per-node 8 "
      "pretrain_gpt.py --num-layers ...)");
  EXPECT_THAT(parse_error("torchrun --nproc-per-node 0 p.py"),
              HasSubstr("--nproc-per-node: 0 is out of range"));
  EXPECT_THAT(parse_error("torchrun --nproc-per-node 99999999999999999999 p.py"),
              HasSubstr("out of range"));
  EXPECT_THAT(parse_error("torchrun --nproc-per-node 16777216 --nnodes 16777216 p.py"),
              HasSubstr("too many"));
  EXPECT_THAT(parse_error("torchrun p.py --title 'x"), HasSubstr("never closed"));
}

TEST(MegatronArgs, PrintsOnlyWhatDiffersFromTheDefault) {
  MegatronArgs args;
  EXPECT_THAT(to_argv(args), IsEmpty());
  args.tensor_model_parallel_size = 8;
  args.sequence_parallel = true;
  args.pipeline_model_parallel_layout = "Et|tL";
  args.cp_comm_type = {"p2p", "a2a"};
  args.other = {{"--lr", {"1e-4"}}, {"--odd", {"--value"}}};
  EXPECT_THAT(to_argv(args),
              ElementsAre("--tensor-model-parallel-size", "8", "--sequence-parallel",
                          "--pipeline-model-parallel-layout", "Et|tL", "--cp-comm-type", "p2p",
                          "a2a", "--lr", "1e-4", "--odd=--value"));
}

TEST(MegatronArgs, EveryFieldIsPrintedAndReadBack) {
  for (const auto& option : megatron_options()) {
    const std::string value = option.choices.empty()
                                  ? std::to_string(option.max > 1 ? 2 : 1)
                                  : std::string(option.choices.substr(0, option.choices.find(' ')));
    std::vector<std::string> words = {std::string(option.flag)};
    if (!std::holds_alternative<bool MegatronArgs::*>(option.field)) words.push_back(value);
    const auto args = parse_megatron_args(words);
    EXPECT_NE(args, MegatronArgs{}) << option.flag;
    EXPECT_EQ(to_argv(args), words) << option.flag;
  }
}

rc::Gen<std::string> text() {
  return rc::gen::container<std::string>(rc::gen::element('a', '-', '1', ' ', '=', '|', 'E', '\''));
}

/// Any arguments at all: each field set or not, with values in its range.
MegatronArgs any_args() {
  MegatronArgs args;
  for (const auto& option : megatron_options()) {
    if (!*rc::gen::weightedElement<bool>({{3, false}, {1, true}})) continue;
    std::visit(
        [&](auto field) {
          using Value = std::remove_reference_t<decltype(args.*field)>;
          const auto integer = rc::gen::inRange(option.min, option.max + 1);
          if constexpr (std::is_same_v<Value, bool>) {
            args.*field = true;
          } else if constexpr (std::is_same_v<Value, std::int64_t> ||
                               std::is_same_v<Value, std::optional<std::int64_t>>) {
            args.*field = *integer;
          } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
            args.*field = *rc::gen::arbitrary<int>() / 1024.0;
          } else if constexpr (std::is_same_v<Value, std::optional<std::string>>) {
            args.*field = option.choices.empty()
                              ? *text()
                              : std::string(option.choices.substr(0, option.choices.find(' ')));
          } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
            args.*field = *rc::gen::nonEmpty(rc::gen::container<Value>(integer));
          } else {
            args.*field = {"p2p", "a2a+p2p", "", "-3"};
          }
        },
        option.field);
  }
  args.other = *rc::gen::container<std::vector<OtherOption>>(
      rc::gen::map(text(), [](const std::string& value) { return OtherOption{"--zz", {value}}; }));
  return args;
}

TEST(MegatronArgs, ParseOfPrintIsTheSame) {
  EXPECT_TRUE(rc::check("any arguments", [] {
    const auto args = any_args();
    RC_ASSERT(parse_megatron_args(to_argv(args)) == args);
    RC_ASSERT(parse_megatron_command(join_shell_words(to_argv(args))).args == args);
  }));
}

}  // namespace
}  // namespace meshwright
