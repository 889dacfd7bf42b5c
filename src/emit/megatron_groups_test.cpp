#include "emit/megatron_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace meshwright {
namespace {

using ::testing::HasSubstr;

MegatronDegrees degrees_of(const Json& entry) {
  MegatronDegrees d;
  d.world = entry.at("world").get<std::int64_t>();
  d.tp = entry.at("tp").get<std::int64_t>();
  d.cp = entry.at("cp").get<std::int64_t>();
  d.pp = entry.at("pp").get<std::int64_t>();
  d.ep = entry.at("ep").get<std::int64_t>();
  d.etp = entry.at("etp").get<std::int64_t>();
  d.pp_before_dp = entry.at("order").get<std::string>() == "tp-cp-ep-pp-dp";
  return d;
}

TEST(MegatronGroups, EqualTheRecordedOnes) {
  const auto path =
      std::filesystem::path(MESHWRIGHT_REFERENCE_DATA) / "engines/megatron_rank_groups.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference data at " << path;
  const Json entries = read_json(path);
  std::size_t compared = 0;
  for (const auto& entry : entries) {
    const auto d = degrees_of(entry);
    Json layout = entry;
    layout.erase("dense");
    layout.erase("expert");
    SCOPED_TRACE(layout.dump());
    EXPECT_EQ(d.dp(), entry.at("dp").get<std::int64_t>());
    EXPECT_EQ(d.expert_dp(), entry.at("edp").get<std::int64_t>());
    EXPECT_EQ(pipeline_groups_agree(d), entry.at("pp_groups_equal").get<bool>());
    for (const auto& [axes, groups] : entry.at("dense").items()) {
      EXPECT_EQ(megatron_rank_groups(d, MegatronGrid::kDense, axes), groups.get<RankGroups>())
          << axes;
      ++compared;
    }
    for (const auto& [axes, groups] : entry.at("expert").items()) {
      EXPECT_EQ(megatron_rank_groups(d, MegatronGrid::kExpert, axes), groups.get<RankGroups>())
          << axes;
      ++compared;
    }
    const bool same_pipelines = megatron_rank_groups(d, MegatronGrid::kDense, "pp") ==
                                megatron_rank_groups(d, MegatronGrid::kExpert, "pp");
    EXPECT_EQ(same_pipelines, pipeline_groups_agree(d));
  }
  EXPECT_EQ(entries.size(), 24u);
  EXPECT_EQ(compared, 24u * 13u);
}

TEST(MegatronGroups, EveryRankIsInOneGroup) {
  const MegatronDegrees d{.world = 48,
                          .tp = 2,
                          .cp = 2,
                          .pp = 3,
                          .ep = 4,
                          .etp = 1,
                          .weight_shards = 2,
                          .pp_before_dp = true};
  for (const auto* axes : {"tp", "gtp", "cp", "dp", "pp", "tp-pp", "tp-dp-cp", "dp-cp-tp-pp-gtp"}) {
    std::vector<std::int64_t> ranks;
    for (const auto& group : megatron_rank_groups(d, MegatronGrid::kDense, axes)) {
      EXPECT_TRUE(std::ranges::is_sorted(group)) << axes;
      ranks.insert(ranks.end(), group.begin(), group.end());
    }
    std::ranges::sort(ranks);
    ASSERT_EQ(ranks.size(), 48u) << axes;
    for (std::int64_t r = 0; r < 48; ++r) EXPECT_EQ(ranks[r], r);
  }
}

TEST(MegatronGroups, OrderOfTheNamesDoesNotMatter) {
  const MegatronDegrees d{.world = 16, .tp = 2, .pp = 2};
  EXPECT_EQ(megatron_rank_groups(d, MegatronGrid::kDense, "tp-pp"),
            megatron_rank_groups(d, MegatronGrid::kDense, "pp-tp"));
}

TEST(MegatronGroups, RefusesBadDegrees) {
  const auto message = [](const MegatronDegrees& d, MegatronGrid grid, std::string_view axes) {
    try {
      megatron_rank_groups(d, grid, axes);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(
      message({.world = 6, .tp = 4}, MegatronGrid::kDense, "tp"),
      "rank groups: 6 ranks cannot be divided by tp x weight shards x cp x pp (4 x 1 x 1 x 1)");
  EXPECT_THAT(message({.world = 8, .ep = 3}, MegatronGrid::kExpert, "ep"),
              HasSubstr("cannot be divided by etp x ep x weight shards x pp"));
  EXPECT_THAT(message({.world = 8, .tp = 0}, MegatronGrid::kDense, "tp"),
              HasSubstr("cannot be divided"));
  EXPECT_EQ(message({.world = 8}, MegatronGrid::kDense, "ep"),
            "rank groups: \"ep\" is no axis of this grid");
  EXPECT_THAT(message({.world = 8}, MegatronGrid::kDense, "tp-"), HasSubstr("no axis"));
  EXPECT_THAT(message({.world = std::int64_t{1} << 40}, MegatronGrid::kDense, "dp"),
              HasSubstr("out of range"));
}

}  // namespace
}  // namespace meshwright
