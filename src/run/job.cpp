#include "run/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr const char* kFormat = "meshwright-job";
constexpr int kVersion = 1;
constexpr std::size_t kMaxPath = 4096;
constexpr std::int64_t kMaxSteps = 1'000'000'000'000;

// The kinds of a field, with what its value may be.
struct Text {
  std::string Job::* field;
  bool may_be_empty;
};
struct Choice {
  std::string Job::* field;
  std::vector<std::string> values;
};
struct Integer {
  std::int64_t Job::* field;
  std::int64_t low, high;
};
struct Unsigned {
  std::uint64_t Job::* field;
};
struct Number {
  double Job::* field;
  double low, high;
  bool low_open = false;   // `low` itself is no legal value.
  bool high_open = false;  // Nor is `high`.
};
struct Flag {
  bool Job::* field;
};

struct Field {
  const char* key;
  std::variant<Text, Choice, Integer, Unsigned, Number, Flag> kind;
};

const std::vector<Field>& fields() {
  static const std::vector<Field> table = {
      {"plan", Text{&Job::plan, false}},
      {"steps", Integer{&Job::steps, 1, kMaxSteps}},
      {"data", Text{&Job::data, false}},
      {"dtype", Choice{&Job::dtype, {"float64", "float32", "bfloat16"}}},
      {"seed", Unsigned{&Job::seed}},
      {"learning_rate", Number{&Job::learning_rate, 0, 1e6}},
      {"momentum", Number{&Job::momentum, 0, 1, false, true}},
      {"beta1", Number{&Job::beta1, 0, 1, false, true}},
      {"beta2", Number{&Job::beta2, 0, 1, false, true}},
      {"epsilon", Number{&Job::epsilon, 0, 1}},
      {"weight_decay", Number{&Job::weight_decay, 0, 1e6}},
      {"clip_norm", Number{&Job::clip_norm, 0, 1e30}},
      {"verify", Flag{&Job::verify}},
      {"tolerance", Number{&Job::tolerance, 0, 1}},
      {"checkpoint_directory", Text{&Job::checkpoint_directory, true}},
      {"checkpoint_every", Integer{&Job::checkpoint_every, 0, kMaxSteps}},
      {"resume", Text{&Job::resume, true}},
      {"profile", Text{&Job::profile, true}},
      {"device", Choice{&Job::device, {"cpu", "cuda"}}},
      {"print_every", Integer{&Job::print_every, 0, kMaxSteps}},
      {"timeout_seconds", Number{&Job::timeout_seconds, 0, 1e7, true}},
      {"predicted_step_seconds", Number{&Job::predicted_step_seconds, 0, 1e9}},
  };
  return table;
}

std::string range(const Number& kind) {
  return fmt::format("{} {} and {} {}", kind.low_open ? "more than" : "at least", kind.low,
                     kind.high_open ? "less than" : "at most", kind.high);
}

// Reads one value into `job`; throws Error without a place.
struct Reader {
  const Json& value;
  Job& job;

  std::string text(bool may_be_empty) const {
    if (!value.is_string()) throw Error("must be a string");
    const auto& result = value.get_ref<const std::string&>();
    if (result.empty() && !may_be_empty) throw Error("must not be empty");
    if (result.size() > kMaxPath) throw Error(fmt::format("is longer than {} bytes", kMaxPath));
    if (result.find('\0') != std::string::npos) throw Error("must not hold a zero byte");
    return result;
  }
  void operator()(const Text& kind) const { job.*kind.field = text(kind.may_be_empty); }
  void operator()(const Choice& kind) const {
    const std::string given = text(true);
    if (std::find(kind.values.begin(), kind.values.end(), given) == kind.values.end()) {
      throw Error(
          fmt::format("must be one of {}: {}", fmt::join(kind.values, ", "), in_quotes(given)));
    }
    job.*kind.field = given;
  }
  void operator()(const Integer& kind) const {
    if (!value.is_number_integer()) throw Error("must be an integer");
    const bool large = value.is_number_unsigned() &&
                       value.get<std::uint64_t>() >
                           static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (large || value.get<std::int64_t>() < kind.low || value.get<std::int64_t>() > kind.high) {
      throw Error(fmt::format("must be between {} and {}: {}", kind.low, kind.high, value.dump()));
    }
    job.*kind.field = value.get<std::int64_t>();
  }
  void operator()(const Unsigned& kind) const {
    // Built in code, a small one may be signed.
    if (!value.is_number_integer() ||
        (!value.is_number_unsigned() && value.get<std::int64_t>() < 0)) {
      throw Error(fmt::format("must be an integer between 0 and {}",
                              std::numeric_limits<std::uint64_t>::max()));
    }
    job.*kind.field = value.get<std::uint64_t>();
  }
  void operator()(const Number& kind) const {
    if (!value.is_number()) throw Error("must be a number, " + range(kind));
    const double given = value.get<double>();
    const bool low = kind.low_open ? given > kind.low : given >= kind.low;
    const bool high = kind.high_open ? given < kind.high : given <= kind.high;
    if (!std::isfinite(given) || !low || !high) {
      throw Error(fmt::format("must be {}: {}", range(kind), given));
    }
    job.*kind.field = given;
  }
  void operator()(const Flag& kind) const {
    if (!value.is_boolean()) throw Error("must be true or false");
    job.*kind.field = value.get<bool>();
  }
};

void read_key(const Json& value, const Field& field, Job& job, std::string_view source) {
  try {
    std::visit(Reader{value, job}, field.kind);
  } catch (const Error& e) {
    throw e.within(fmt::format("{}/{}", source, field.key));
  }
}

void check_together(const Job& job, std::string_view source) {
  if (job.checkpoint_every > 0 && job.checkpoint_directory.empty()) {
    throw Error(
        fmt::format("a checkpoint every {} steps, but nowhere to write it", job.checkpoint_every),
        fmt::format("{}/checkpoint_every", source), "set checkpoint_directory");
  }
}

}  // namespace

Json job_to_json(const Job& job) {
  Json json = {{"format", kFormat}, {"version", kVersion}};
  for (const Field& field : fields()) {
    Json& value = json[field.key];
    std::visit([&](const auto& kind) { value = job.*kind.field; }, field.kind);
    if (value.is_string()) {
      try {
        (void)value.dump();
      } catch (const Json::exception&) {
        throw Error("must be UTF-8, as JSON is", fmt::format("job/{}", field.key));
      }
    }
  }
  (void)job_from_json(json, "job");
  return json;
}

Job job_from_json(const Json& json, std::string_view source) {
  if (!json.is_object()) throw Error("must be an object", std::string(source));
  if (json.value("format", Json()) != kFormat) {
    throw Error("not a meshwright job", std::string(source));
  }
  if (const Json version = json.value("version", Json()); version != kVersion) {
    throw Error(fmt::format("version {} of the format is not known",
                            version.is_number() ? version.dump() : "(none)"),
                fmt::format("{}/version", source),
                fmt::format("this program reads version {}", kVersion));
  }
  Job job;
  std::vector<std::string> keys = {"format", "version"};
  for (const Field& field : fields()) keys.emplace_back(field.key);
  for (const auto& [key, value] : json.items()) {
    if (key == "format" || key == "version") continue;
    const auto field = std::find_if(fields().begin(), fields().end(),
                                    [&](const Field& f) { return key == f.key; });
    if (field == fields().end()) {
      const std::vector<std::string> near = nearest_names(key, keys, 1);
      throw Error(fmt::format("unknown key {}", in_quotes(key)), std::string(source),
                  near.empty() ? "" : fmt::format("did you mean '{}'?", near[0]));
    }
    read_key(value, *field, job, source);
  }
  if (job.plan.empty()) throw Error("key 'plan' is missing", std::string(source));
  check_together(job, source);
  return job;
}

}  // namespace meshwright
