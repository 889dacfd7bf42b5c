#include "api/request.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "api/advise.h"
#include "base/error.h"
#include "base/files.h"
#include "search/judge.h"
#include "search/layout_search.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

TEST(Request, AllowedRanges) {
  EXPECT_TRUE(parse_allowed("8", "--tp").pinned());
  EXPECT_EQ(parse_allowed("2..8", "--tp").min, 2);
  EXPECT_EQ(parse_allowed("2..8", "--tp").max, 8);
  EXPECT_EQ(parse_allowed("..8", "--tp").min, 1);
  EXPECT_GT(parse_allowed("2..", "--tp").max, 1 << 20);
  for (const char* bad : {"", "x", "0", "-1", "8..2", "1..2..3", "99999999999999999999"}) {
    EXPECT_THROW(parse_allowed(bad, "--tp"), Error) << bad;
  }
}

TEST(Request, Wishes) {
  const Restrictions wish = parse_wish("tp=4,pp=2..8,zero=zero3,recompute=full,sp=false", {});
  EXPECT_TRUE(wish.tp.pinned());
  EXPECT_EQ(wish.pp.max, 8);
  EXPECT_EQ(wish.state, std::vector{StateSharding::kZero3});
  EXPECT_EQ(wish.sp, false);
  for (const char* bad :
       {"", "tp", "xp=2", "tp=99999999999999999999", "zero=zero9", "tp=4,tp=8", "sp=maybe"}) {
    EXPECT_THROW(parse_wish(bad, {}), Error) << bad;
  }
}

TEST(Request, PrecisionsThatTheDevicesLackAreErrors) {
  Request r;
  r.model = "llama-tiny";
  r.cluster = "dgx-v100:1";
  EXPECT_THROW(load(r), Error);
  r.training.dtype = DType::kF16;
  EXPECT_NO_THROW(load(r));
}

Loaded tiny(const char* cluster, const Restrictions& restrictions = {}) {
  Request r;
  r.model = "llama-tiny";
  r.cluster = cluster;
  r.import.global_batch = 16;
  r.import.seq = 128;
  r.restrictions = restrictions;
  return load(r);
}

TEST(Request, PlanFilesReadBack) {
  const Loaded loaded = tiny("a100-80:1x4");
  const SearchResult result = search_layouts(loaded.problem(), {});
  ASSERT_FALSE(result.ranking.empty());
  const std::string path = testing::TempDir() + "/plan_file_test.json";
  write_file(path, plan_file_to_json(loaded, result.ranking[0]).dump(2), true);
  const PlanFile back = read_plan_file(path);
  const Judged judged = judge(back.loaded.problem(), back.plan);
  EXPECT_EQ(judged.step().value, result.ranking[0].step().value);
  std::filesystem::remove(path);
}

// A plan holds for one graph, in one version of the format, and says nothing that is not
// understood.
TEST(Request, EditedPlanFilesAreRefused) {
  const Loaded loaded = tiny("a100-80:1x4");
  const SearchResult result = search_layouts(loaded.problem(), {});
  ASSERT_FALSE(result.ranking.empty());
  const Json good = plan_file_to_json(loaded, result.ranking[0]);
  const std::string path = testing::TempDir() + "/edited_plan_test.json";
  const auto message = [&](const Json& json) {
    write_file(path, json.dump(2), true);
    try {
      read_plan_file(path);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(good), "accepted");
  Json edited = good;
  edited["version"] = 7;
  EXPECT_THAT(message(edited), HasSubstr("version 7 of the format is not known"));
  edited = good;
  edited["degres"] = 1;
  EXPECT_THAT(message(edited), HasSubstr("unknown key \"degres\""));
  edited = good;
  edited["stages"][0]["roles"]["tensors"] = Json::array();
  EXPECT_THAT(message(edited), HasSubstr("/stages/0/roles"));
  edited = good;
  edited["model"]["seq"] = loaded.model.seq * 2;
  EXPECT_THAT(message(edited), HasSubstr("the plan was made for another graph"));
  edited.erase("graph");
  EXPECT_EQ(message(edited), "accepted");
  edited = good;
  edited["graph"] = 5;
  EXPECT_THAT(message(edited), HasSubstr("/graph"));
  std::filesystem::remove(path);
}

TEST(Advise, SaysWhatWouldFit) {
  Request r;
  r.model = "llama-3-8b";
  r.cluster = "a100-40:1x2";
  r.import.global_batch = 16;
  r.import.seq = 2048;
  const Loaded loaded = load(r);
  const SearchResult result = search_layouts(loaded.problem(), {});
  ASSERT_EQ(result.status, SearchStatus::kNothingFits);
  const std::string text = advise(loaded, result, {});
  EXPECT_THAT(text, HasSubstr("Nothing fits"));
  EXPECT_THAT(text, HasSubstr("the largest part is optimizer"));
  EXPECT_THAT(text, testing::ContainsRegex("[0-9]+ of these devices \\([0-9]+ hosts\\) fit it"));
}

TEST(Advise, LiftsARestriction) {
  Restrictions none;
  none.state = {StateSharding::kNone};
  Request r;
  r.model = "llama-3-8b";
  r.cluster = "dgx-a100:1";
  r.import.global_batch = 16;
  r.import.seq = 2048;
  r.restrictions = none;
  r.restrictions.tp = r.restrictions.pp = {1, 1};
  const Loaded loaded = load(r);
  const SearchResult result = search_layouts(loaded.problem(), {});
  ASSERT_EQ(result.status, SearchStatus::kNothingFits);
  EXPECT_THAT(advise(loaded, result, {}), HasSubstr("any state sharding: "));
}

TEST(Advise, IllegalPinsNameTheLegalValues) {
  Restrictions restrictions;
  restrictions.tp = {3, 3};
  const Loaded loaded = tiny("a100-80:1x6", restrictions);
  EXPECT_THAT(explain_illegal(loaded.problem(), restrictions), HasSubstr("legal tp are"));
}

TEST(WithHosts, RepeatsTheFirstHost) {
  const Cluster four = with_hosts(read_cluster("dgx-h100:2"), 4);
  EXPECT_EQ(four.device_count(), 32);
  EXPECT_EQ(four.hosts.size(), 4u);
  check_cluster(four);
  check_cluster(with_hosts(read_cluster("dgx-h100:1"), 3));
}

}  // namespace
}  // namespace meshwright
