// A Hugging Face config.json gives a legal graph or an Error.
#include "fuzz.h"
#include "import/import.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    check_graph(import_hf_config(text, "config.json", {}).graph);
  });
}

}  // namespace meshwright
