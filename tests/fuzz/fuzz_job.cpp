// A job file: read, written, read back.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "fuzz.h"
#include "run/job.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const Job job = job_from_json(parse_json(text, "job.json"), "job.json");
    MW_CHECK(job_from_json(job_to_json(job), "printed") == job, "job does not survive printing");
  });
}

}  // namespace meshwright
