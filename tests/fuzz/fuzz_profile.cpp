// A profile: read, written, read back.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cost/profile.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const ProfileTable table = profile_from_json(parse_json(text, "table.json"), "table.json");
    const Json printed = profile_to_json(table);
    MW_CHECK(profile_to_json(profile_from_json(printed, "printed")) == printed,
             "a profile does not survive printing");
  });
}

}  // namespace meshwright
