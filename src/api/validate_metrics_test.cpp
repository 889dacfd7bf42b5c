#include "api/validate_metrics.h"

#include <gtest/gtest.h>

namespace meshwright {
namespace {

TEST(Metrics, ErrorsAreRelativeToTheMeasurement) {
  const std::vector<MeasuredPair> pairs = {{10, 12}, {10, 9}, {20, 10}};
  EXPECT_NEAR(mean_absolute_error(pairs), (0.2 + 0.1 + 0.5) / 3, 1e-12);
  EXPECT_NEAR(median_error(pairs), -0.1, 1e-12);
  EXPECT_NEAR(median_error({{10, 12}, {10, 9}}), 0.05, 1e-12);
  EXPECT_EQ(mean_absolute_error({}), 0);
}

TEST(Metrics, KendallCountsPairs) {
  // Measured 1 < 2 < 3 < 4; predicted swaps the first two: five pairs agree, one does not.
  const RankCount one = count_ranks({{1, 20}, {2, 10}, {3, 30}, {4, 40}});
  EXPECT_EQ(one.agree, 5);
  EXPECT_EQ(one.differ, 1);
  EXPECT_NEAR(one.tau(), 4.0 / 6, 1e-12);
  // Equal measurements say nothing; equal predictions are right half of the time.
  EXPECT_EQ(count_ranks({{1, 1}, {1, 2}}).agree, 0);
  EXPECT_EQ(count_ranks({{1, 5}, {2, 5}}).tau(), 0);
  EXPECT_EQ(count_ranks({{1, 5}}).tau(), 0);
}

TEST(Metrics, RegretIsWhatFollowingThePredictionCosts) {
  EXPECT_EQ(regret({{{10, 1}}, {{12, 2}}}), 0);
  EXPECT_NEAR(regret({{{10, 2}}, {{12, 1}}}), 0.2, 1e-12);
  EXPECT_NEAR(regret({{{10, 1}}, {{12, 1}}}), 0.2, 1e-12);  // A tie is not luck.
  // What is predicted not to fit is not picked, but counts as the best there is.
  EXPECT_NEAR(regret({{{10, 1}, false}, {{12, 2}, true}, {{15, 3}, true}}), 0.2, 1e-12);
  EXPECT_NEAR(regret({{{10, 2}, false}, {{12, 1}, false}}), 0.2, 1e-12);
}

TEST(Metrics, BalancedAccuracyWeighsBothKindsAlike) {
  Confusion c;
  for (int i = 0; i < 8; ++i) c.add(false, i < 6);  // 6 of 8 that ran are told to fit.
  EXPECT_FALSE(c.has_both());
  for (int i = 0; i < 2; ++i) c.add(true, i < 1);  // 1 of 2 that did not is told so.
  EXPECT_EQ(c.fits_as_predicted, 6);
  EXPECT_EQ(c.refused_but_fits, 2);
  EXPECT_EQ(c.accepted_but_full, 1);
  EXPECT_EQ(c.full_as_predicted, 1);
  EXPECT_NEAR(c.balanced_accuracy(), (0.75 + 0.5) / 2, 1e-12);
}

}  // namespace
}  // namespace meshwright
