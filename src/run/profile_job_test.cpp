#include "run/profile_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

ProfileJob job() { return {{"a.json", "b.json"}, "t.json", "bfloat16", 7, 1.5}; }

TEST(ProfileJob, SurvivesPrinting) {
  EXPECT_EQ(profile_job_from_json(profile_job_to_json(job()), "j"), job());
}

TEST(ProfileJob, SaysWhatIsWrong) {
  const auto fault = [](const std::function<void(Json&)>& change) -> std::string {
    Json json = profile_job_to_json(job());
    change(json);
    try {
      profile_job_from_json(json, "j");
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(fault([](Json& j) { j["format"] = "meshwright-job"; }),
              HasSubstr("not a profile job"));
  EXPECT_THAT(fault([](Json& j) { j["version"] = 3; }), HasSubstr("this program reads version 1"));
  EXPECT_THAT(fault([](Json& j) { j["plans"] = Json::array(); }), HasSubstr("j/plans: must be 1"));
  EXPECT_THAT(fault([](Json& j) { j["plans"] = 3; }), HasSubstr("must be a list"));
  EXPECT_THAT(fault([](Json& j) { j["output"] = ""; }), HasSubstr("j/output"));
  EXPECT_THAT(fault([](Json& j) { j["dtype"] = "int8"; }), HasSubstr("int8"));
  EXPECT_THAT(fault([](Json& j) { j["repeat"] = 2; }), HasSubstr("must be 3 to 10000"));
  EXPECT_THAT(fault([](Json& j) { j["repeat"] = 1e300; }), HasSubstr("must be 3 to 10000"));
  EXPECT_THAT(fault([](Json& j) { j["budget_seconds"] = -1; }), HasSubstr("j/budget_seconds"));
  EXPECT_THAT(fault([](Json& j) { j["x"] = -1; }), HasSubstr("unknown key"));
  ProfileJob none = job();
  none.plans.clear();
  EXPECT_THROW(profile_job_to_json(none), Error);
}

}  // namespace
}  // namespace meshwright
