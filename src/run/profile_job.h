#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace meshwright {

/// All that a rank needs to know to measure: read by every rank from one file, as Job is.
struct ProfileJob {
  std::vector<std::string> plans;  ///< Paths of plan files: 1..64.
  std::string output;              ///< Path of the table; an existing one is added to.
  std::string dtype = "float32";   ///< "float64", "float32" or "bfloat16".
  int repeat = 15;                 ///< 3..10000 measurements of each, the median counts.
  double budget_seconds = 0;       ///< Then no more is begun; 0 = no limit.

  friend bool operator==(const ProfileJob&, const ProfileJob&) = default;
};

inline constexpr const char* kProfileJobFormat = "meshwright-profile-job";

/// Throws Error when a value is out of its range.
Json profile_job_to_json(const ProfileJob& job);
/// Throws Error whose place is `source` and a JSON pointer: missing and unknown keys, wrong types,
/// values out of range.
ProfileJob profile_job_from_json(const Json& json, std::string_view source);

}  // namespace meshwright
