#include <nlohmann/json.hpp>

#include "base/json.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const std::string printed = parse_json(text, "input").dump();
    MW_CHECK(parse_json(printed, "printed").dump() == printed, "JSON does not survive printing");
  });
}

}  // namespace meshwright
