#include "run/verdict.h"

#include <gmock/gmock.h>

#include <csignal>
#include <vector>

namespace meshwright {
namespace {

// Wait statuses as Linux packs them.
int exited(int code) { return code << 8; }
int killed(int signal) { return signal; }

RankView running() {
  RankView view;
  view.slot.state = RankState::kRunning;
  view.silence_limit_ms = 5000;
  view.seen_ns = 1000;
  return view;
}
RankView ended(int status, std::int64_t ns) {
  RankView view = running();
  view.status = status;
  view.seen_ns = ns;
  return view;
}
RankView failed(std::int64_t ns, int blames) {
  RankView view = running();
  view.slot.state = RankState::kFailed;
  view.slot.failure = "x";
  view.slot.failure_ns = ns;
  view.slot.blames = blames;
  return view;
}

int root(std::vector<RankView> views) {
  const auto fault = root_fault(views);
  return fault ? fault->rank : -1;
}

TEST(Verdict, NoFaultWithoutEvidence) {
  RankView done = ended(exited(0), 5);
  done.slot.state = RankState::kFinished;
  RankView plain = ended(exited(0), 5);
  plain.slot.state = RankState::kAbsent;
  RankView told = ended(killed(SIGTERM), 5);
  told.terminated = true;
  RankView answers = ended(exited(1), 5);
  answers.slot.state = RankState::kFinished;
  EXPECT_EQ(root({running(), done, plain, told, answers}), -1);
  answers.slot.state = RankState::kRunning;
  EXPECT_EQ(root({running(), done, plain, told, answers}), 4);
}

TEST(Verdict, CausesCountMoreThanConsequencesWheneverTheyAreSeen) {
  EXPECT_EQ(root({failed(1, 2), failed(2, -1), ended(killed(SIGKILL), 9)}), 2);
  EXPECT_EQ(root({failed(1, 1), failed(2, -1), ended(killed(SIGABRT), 0)}), 1);
  EXPECT_EQ(root({failed(1, 1), ended(killed(SIGABRT), 9), running()}), 1);
  EXPECT_EQ(root({failed(7, 1), failed(6, 2), failed(8, 1)}), 1);
  RankView silent = running();
  silent.silent_ms = 5000;
  EXPECT_EQ(root({failed(1, -1), failed(1, 2), silent}), 2);
}

TEST(Verdict, OfEqualFaultsTheFirstCounts) {
  EXPECT_EQ(root({failed(9, -1), ended(exited(3), 8), failed(7, -1)}), 2);
  RankView silent = running(), longer = running();
  silent.silent_ms = 5000;
  longer.silent_ms = 5100;
  EXPECT_EQ(root({silent, longer, silent}), 1);
}

TEST(Verdict, ExitCodesOfTheRun) {
  const auto code = [](const RankView& view) { return fault_of(0, view)->exit_code; };
  EXPECT_EQ(code(ended(exited(2), 0)), 2);
  EXPECT_EQ(code(ended(exited(70), 0)), 70);
  EXPECT_EQ(code(ended(exited(99), 0)), 1);
  EXPECT_EQ(code(ended(killed(SIGKILL), 0)), 1);
  RankView by_word = failed(0, -1);
  by_word.slot.failure_code = 2;
  EXPECT_EQ(code(by_word), 2);
  by_word.slot.failure_code = 0;
  EXPECT_EQ(code(by_word), 1);
}

}  // namespace
}  // namespace meshwright
