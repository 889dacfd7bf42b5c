#include <string>

#include "fuzz.h"
#include "space/plan_space.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const std::string printed = print_space(parse_space(text, "input"));
    if (printed.size() > (1u << 20)) return;
    MW_CHECK(print_space(parse_space(printed, "printed")) == printed,
             "a plan space does not survive printing");
  });
}

}  // namespace meshwright
