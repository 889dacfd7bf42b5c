#include "emit/megatron_layout.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const MegatronLayout layout = parse_megatron_layout(text);
    MW_CHECK(parse_megatron_layout(print_megatron_layout(layout)) == layout,
             "layout does not survive printing");
    layout_fault(layout, 4, 32, 1);
  });
}

}  // namespace meshwright
