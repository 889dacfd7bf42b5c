#include "run/job.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Json smallest() { return {{"format", "meshwright-job"}, {"version", 1}, {"plan", "p.json"}}; }

std::string error_of(const Json& json) {
  try {
    job_from_json(json, "job.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string error_with(const std::string& key, const Json& value) {
  Json json = smallest();
  json[key] = value;
  return error_of(json);
}

TEST(Job, MissingKeysLeaveDefaults) {
  Job job;
  job.plan = "p.json";
  EXPECT_EQ(job_from_json(smallest(), "job.json"), job);
}

TEST(Job, EveryFieldIsWrittenAndRead) {
  const Job job = {.plan = "a/plan.json",
                   .steps = 1'000'000'000'000,
                   .data = "tokens \"x\".bin",
                   .dtype = "bfloat16",
                   .seed = std::numeric_limits<std::uint64_t>::max(),
                   .learning_rate = 0.1,
                   .momentum = 0.5,
                   .beta1 = 0.8,
                   .beta2 = 0.98,
                   .epsilon = 1e-5,
                   .weight_decay = 0.02,
                   .clip_norm = 1.5,
                   .verify = true,
                   .tolerance = 1e-12,
                   .checkpoint_directory = "c",
                   .checkpoint_every = 10,
                   .resume = "c/step-10",
                   .profile = "trace.json",
                   .device = "cuda",
                   .print_every = 7,
                   .timeout_seconds = 60.5,
                   .predicted_step_seconds = 0.25};
  const Json json = job_to_json(job);
  EXPECT_EQ(job_from_json(parse_json(json.dump(), "text"), "text"), job);
  // A field that the table lacks would be equal to its default here.
  const Json defaults = job_to_json({.plan = "p.json"});
  EXPECT_EQ(json.size(), 24u);
  for (const auto& [key, value] : json.items()) {
    if (key == "format" || key == "version") continue;
    EXPECT_NE(value, defaults[key]) << key;
  }
}

RC_GTEST_PROP(Job, NumbersSurviveText, (std::uint64_t seed, std::uint32_t a, std::uint32_t b)) {
  Job job;
  job.plan = "p";
  job.seed = seed;
  job.learning_rate = a / (1.0 + b);
  RC_PRE(job.learning_rate <= 1e6);
  job.tolerance = b / 4294967296.0;
  job.steps = 1 + static_cast<std::int64_t>(a) * 100;
  RC_ASSERT(job_from_json(parse_json(job_to_json(job).dump(), "t"), "t") == job);
}

TEST(Job, UnknownKeysAndFormatsAreRefused) {
  EXPECT_EQ(error_with("learning_rat", 1),
            "job.json: unknown key \"learning_rat\" (did you mean 'learning_rate'?)");
  EXPECT_THAT(error_with("optimizer", "adam"), StartsWith("job.json: unknown key \"optimizer\""));
  EXPECT_EQ(error_with("version", 2),
            "job.json/version: version 2 of the format is not known (this program reads version "
            "1)");
  EXPECT_EQ(error_with("version", Json::array({1})),
            "job.json/version: version (none) of the format is not known (this program reads "
            "version 1)");
  EXPECT_EQ(error_with("format", "meshwright-plan"), "job.json: not a meshwright job");
  EXPECT_EQ(error_with("format", 3), "job.json: not a meshwright job");
  EXPECT_EQ(error_of(Json::array()), "job.json: must be an object");
  EXPECT_EQ(error_of(Json()), "job.json: must be an object");
  Json no_plan = smallest();
  no_plan.erase("plan");
  EXPECT_EQ(error_of(no_plan), "job.json: key 'plan' is missing");
}

TEST(Job, ValuesOutOfRangeAreRefused) {
  EXPECT_EQ(error_with("steps", 0), "job.json/steps: must be between 1 and 1000000000000: 0");
  EXPECT_THAT(error_with("steps", std::numeric_limits<std::uint64_t>::max()),
              HasSubstr("must be between 1 and 1000000000000: 18446744073709551615"));
  EXPECT_EQ(error_with("steps", 1.5), "job.json/steps: must be an integer");
  EXPECT_EQ(error_with("steps", "3"), "job.json/steps: must be an integer");
  EXPECT_EQ(error_with("seed", -1),
            "job.json/seed: must be an integer between 0 and 18446744073709551615");
  EXPECT_THAT(error_with("seed", 1e30), HasSubstr("must be an integer"));
  EXPECT_EQ(error_with("dtype", "float16"),
            "job.json/dtype: must be one of float64, float32, bfloat16: \"float16\"");
  EXPECT_EQ(error_with("device", "tpu"), "job.json/device: must be one of cpu, cuda: \"tpu\"");
  EXPECT_EQ(error_with("learning_rate", -0.5),
            "job.json/learning_rate: must be at least 0 and at most 1000000: -0.5");
  EXPECT_THAT(error_with("learning_rate", std::numeric_limits<double>::infinity()),
              HasSubstr("inf"));
  EXPECT_THAT(error_with("learning_rate", std::numeric_limits<double>::quiet_NaN()),
              HasSubstr("nan"));
  EXPECT_EQ(error_with("beta1", 1), "job.json/beta1: must be at least 0 and less than 1: 1");
  EXPECT_EQ(error_with("epsilon", nullptr),
            "job.json/epsilon: must be a number, at least 0 and at most 1");
  EXPECT_EQ(error_with("timeout_seconds", 0),
            "job.json/timeout_seconds: must be more than 0 and at most 10000000: 0");
  EXPECT_EQ(error_with("verify", 1), "job.json/verify: must be true or false");
  EXPECT_EQ(error_with("data", ""), "job.json/data: must not be empty");
  EXPECT_EQ(error_with("plan", Json::object()), "job.json/plan: must be a string");
  EXPECT_EQ(error_with("resume", std::string(5000, 'x')),
            "job.json/resume: is longer than 4096 bytes");
  EXPECT_EQ(error_with("profile", std::string("a\0b", 3)),
            "job.json/profile: must not hold a zero byte");
  EXPECT_EQ(error_with("checkpoint_every", 5),
            "job.json/checkpoint_every: a checkpoint every 5 steps, but nowhere to write it (set "
            "checkpoint_directory)");
}

TEST(Job, WhatCannotBeReadIsNotWritten) {
  EXPECT_THROW(job_to_json({}), Error);
  EXPECT_THROW(job_to_json({.plan = "p", .steps = 0}), Error);
  try {
    job_to_json({.plan = "p\xff"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "job/plan: must be UTF-8, as JSON is");
  }
}

}  // namespace
}  // namespace meshwright
