#include "space/conflict.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

namespace meshwright {
namespace {

// Rules as a bit mask; a set is impossible when it holds one of the given sets.
std::function<bool(const std::vector<char>&)> unless(std::vector<unsigned> impossible) {
  return [impossible](const std::vector<char>& active) {
    unsigned mask = 0;
    for (std::size_t i = 0; i < active.size(); ++i) mask |= (active[i] != 0 ? 1u : 0u) << i;
    for (unsigned set : impossible) {
      if ((mask & set) == set) return false;
    }
    return true;
  };
}

TEST(SmallestConflict, AsSmallAsExhaustiveEnumerationFinds) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const int count = 1 + static_cast<int>(random() % 8);
    std::vector<unsigned> impossible;
    const int sets = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < sets; ++i)
      impossible.push_back(1 + static_cast<unsigned>(random()) % ((1u << count) - 1));
    int least = count;
    for (unsigned set : impossible) least = std::min(least, std::popcount(set));

    const auto possible = unless(impossible);
    const Conflict found = smallest_conflict(count, possible, 10000);
    EXPECT_TRUE(found.smallest);
    EXPECT_EQ(static_cast<int>(found.rules.size()), least);
    std::vector<char> active(static_cast<std::size_t>(count), 0);
    for (int rule : found.rules) active[static_cast<std::size_t>(rule)] = 1;
    EXPECT_FALSE(possible(active));
  }
}

TEST(SmallestConflict, NoRuleIsAtFaultWhenNothingIsEverPossible) {
  const Conflict found = smallest_conflict(5, unless({0}), 100);
  EXPECT_TRUE(found.rules.empty());
}

TEST(SmallestConflict, OutOfQuestionsTheSetStillConflicts) {
  const auto possible = unless({0b110000, 0b001111});
  const Conflict found = smallest_conflict(6, possible, 3);
  EXPECT_FALSE(found.smallest);
  std::vector<char> active(6, 0);
  for (int rule : found.rules) active[static_cast<std::size_t>(rule)] = 1;
  EXPECT_FALSE(possible(active));
}

}  // namespace
}  // namespace meshwright
