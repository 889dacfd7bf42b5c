#include "emit/shell_script.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "emit/megatron_args.h"

namespace meshwright {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<std::string> words(std::string_view script,
                               const std::map<std::string, std::string>& env = {}) {
  return read_shell_script(script, env).words;
}

TEST(ShellScript, FollowsAssignmentsAndArrays) {
  EXPECT_THAT(words(R"(#!/bin/bash
set -e
GPUS=8  # per node
ARGS="--num-layers 24 \
      --hidden-size 1024"
MODEL=(
  --seq-length 2048   # tokens
  --layout 'Et|(t|)*2 L'
)
MODEL+=(--bf16)
mkdir -p out && cd out
torchrun --nproc-per-node $GPUS --nnodes ${NODES:-2} pretrain_gpt.py $ARGS "${MODEL[@]}" "$@"
)"),
              ElementsAre("torchrun", "--nproc-per-node", "8", "--nnodes", "2", "pretrain_gpt.py",
                          "--num-layers", "24", "--hidden-size", "1024", "--seq-length", "2048",
                          "--layout", "Et|(t|)*2 L", "--bf16"));
}

TEST(ShellScript, GivenVariablesWin) {
  const std::string script = "N=4\npython pretrain.py --a $N ${M:-1} ${K:=${N:-2}}\n";
  EXPECT_THAT(words(script), ElementsAre("python", "pretrain.py", "--a", "4", "1", "4"));
  EXPECT_THAT(words(script, {{"N", "8"}, {"M", "9"}}),
              ElementsAre("python", "pretrain.py", "--a", "8", "9", "8"));
}

TEST(ShellScript, KeepsWhatItCannotKnow) {
  EXPECT_THAT(
      words("python x.py $NOWHERE $(date +%s) \"${A%b}\" $1 '$N' \"\" \\$N"),
      ElementsAre("python", "x.py", "$NOWHERE", "$(date", "+%s)", "${A%b}", "$1", "$N", "", "$N"));
}

TEST(ShellScript, ExportsAndPrefixesAreTheEnvironment) {
  const ShellCommand command = read_shell_script(
      "export A=1 B=\"two words\"\nC=3\nexport C\nD=4\nWORLD_SIZE=16 python3 pretrain_gpt.py --x "
      "&\n");
  EXPECT_THAT(command.env, ElementsAre(Pair("A", "1"), Pair("B", "two words"), Pair("C", "3"),
                                       Pair("WORLD_SIZE", "16")));
  EXPECT_THAT(command.words, ElementsAre("python3", "pretrain_gpt.py", "--x"));
}

TEST(ShellScript, SkipsBranchesAndReadsLoopsOnce) {
  EXPECT_THAT(words(R"(X=1
if [[ -n "$DEBUG" ]]; then X=2; else X=3; fi
[ -f y ] && X=4
case $Y in a) X=5 ;; *) X=6 ;; esac
while IFS=, read -r rank _; do
  RANK=$rank python3 pretrain_gpt.py --x $X > log.$rank 2>&1 &
done < ranks.csv
)"),
              ElementsAre("python3", "pretrain_gpt.py", "--x", "1"));
}

TEST(ShellScript, HereDocumentsAreNoCommands) {
  EXPECT_THAT(words("cat > hosts <<EOF\npython pretrain_wrong.py\nEOF\npython pretrain_gpt.py --x"),
              ElementsAre("python", "pretrain_gpt.py", "--x"));
}

TEST(ShellScript, PrefersPretrainingOverOtherScripts) {
  EXPECT_THAT(words("python tools/preprocess_data.py --in x\ntorchrun pretrain_gpt.py --x"),
              ElementsAre("torchrun", "pretrain_gpt.py", "--x"));
  EXPECT_THAT(words("python train.py --x\necho done"), ElementsAre("python", "train.py", "--x"));
}

void expect_error(std::string_view script, const std::string& message) {
  try {
    words(script);
    FAIL() << "no error for " << script.substr(0, 100);
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(message));
  }
}

TEST(ShellScript, SaysWhatIsWrong) {
  expect_error("echo hello\n", "no command with a training script");
  expect_error("\n\nA='x\n", "script:3: open quote '");
  expect_error("python x.py \"${A", "open quote");
  // Doubles forty times.
  std::string bomb = "A=aaaaaaaaaaaaaaaa\n";
  for (int i = 0; i < 40; ++i) bomb += "A=\"$A$A\"\n";
  expect_error(bomb + "python x.py $A", "more than 8 MiB");
  expect_error(std::string((std::size_t{1} << 20) + 1, 'x'), "longer than 1 MiB");
}

}  // namespace
}  // namespace meshwright
