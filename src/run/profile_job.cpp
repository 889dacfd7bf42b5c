#include "run/profile_job.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxPlans = 64;
constexpr std::size_t kMaxPath = 4096;

void check_path(const std::string& path, const std::string& place) {
  if (path.empty() || path.size() > kMaxPath) {
    throw Error(fmt::format("must have 1 to {} bytes: it has {}", kMaxPath, path.size()), place);
  }
}

void check(const ProfileJob& job, std::string_view source) {
  const auto at = [&](const char* key) { return fmt::format("{}/{}", source, key); };
  if (job.plans.empty() || job.plans.size() > kMaxPlans) {
    throw Error(fmt::format("must be 1 to {} plans: {}", kMaxPlans, job.plans.size()), at("plans"));
  }
  for (const std::string& plan : job.plans) check_path(plan, at("plans"));
  check_path(job.output, at("output"));
  if (job.dtype != "float64" && job.dtype != "float32" && job.dtype != "bfloat16") {
    throw Error(fmt::format("must be float64, float32 or bfloat16: {}", in_quotes(job.dtype)),
                at("dtype"));
  }
  if (job.repeat < 3 || job.repeat > 10'000) {
    throw Error(fmt::format("must be 3 to 10000: {}", job.repeat), at("repeat"));
  }
  if (!(job.budget_seconds >= 0 && job.budget_seconds <= 1e9)) {
    throw Error(fmt::format("must be 0 to 1e9: {}", job.budget_seconds), at("budget_seconds"));
  }
}

}  // namespace

Json profile_job_to_json(const ProfileJob& job) {
  check(job, "job");
  Json json = {{"format", kProfileJobFormat},
               {"version", 1},
               {"plans", job.plans},
               {"output", job.output},
               {"dtype", job.dtype},
               {"repeat", job.repeat},
               {"budget_seconds", job.budget_seconds}};
  try {
    (void)json.dump();
  } catch (const Json::exception&) {
    throw Error("paths must be UTF-8, as JSON is", "job");
  }
  return json;
}

ProfileJob profile_job_from_json(const Json& json, std::string_view source) {
  const std::string place(source);
  if (!json.is_object() || json.value("format", Json()) != kProfileJobFormat) {
    throw Error("not a profile job of meshwright", place);
  }
  if (json.value("version", Json()) != 1) {
    throw Error("version of the format is not known", place + "/version",
                "this program reads version 1");
  }
  ProfileJob job;
  for (const auto& [key, value] : json.items()) {
    const std::string at = fmt::format("{}/{}", source, key);
    const auto text = [&](const Json& v) {
      if (!v.is_string()) throw Error("must be a string", at);
      return v.get<std::string>();
    };
    if (key == "format" || key == "version") continue;
    if (key == "plans") {
      if (!value.is_array() || value.size() > kMaxPlans) {
        throw Error(fmt::format("must be a list of 1 to {} paths", kMaxPlans), at);
      }
      for (const Json& plan : value) job.plans.push_back(text(plan));
    } else if (key == "output") {
      job.output = text(value);
    } else if (key == "dtype") {
      job.dtype = text(value);
    } else if (key == "repeat") {
      if (!value.is_number_integer() || value < 0 || value > 10'000) {
        throw Error("must be 3 to 10000", at);
      }
      job.repeat = value.get<int>();
    } else if (key == "budget_seconds") {
      if (!value.is_number()) throw Error("must be a number", at);
      job.budget_seconds = value.get<double>();
    } else {
      throw Error(fmt::format("unknown key {}", in_quotes(key)), place);
    }
  }
  check(job, source);
  return job;
}

}  // namespace meshwright
