#include "fuzz.h"
#include "ir/graph.h"
#include "ops/check_ops.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const Graph graph = parse_graph(text, "input");
    MW_CHECK(parse_graph(print_graph(graph), "printed") == graph,
             "graph does not survive printing");
    check_ops(graph);
  });
}

}  // namespace meshwright
