// A serialized ONNX model gives a legal graph or an Error.
#include "fuzz.h"
#include "import/onnx/onnx.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view bytes) {
    const Model model = onnx::import_model(bytes, "model.onnx", {});
    check_graph(model.graph);
    MW_CHECK(parse_graph(print_graph(model.graph), "printed") == model.graph,
             "graph does not survive printing");
  });
}

}  // namespace meshwright
