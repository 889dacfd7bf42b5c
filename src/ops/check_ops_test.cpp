#include "ops/check_ops.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "models/test_models.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

std::string error_of(const Graph& graph) {
  try {
    check_ops(graph);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(CheckOps, BuiltGraphsPassAndSurvivePrinting) {
  for (const std::int64_t experts : {0, 8}) {
    const Graph graph = test_model({.experts = experts});
    EXPECT_EQ(error_of(graph), "none");
    const Graph again = parse_graph(print_graph(graph), "printed");
    EXPECT_EQ(again, graph);
    EXPECT_EQ(error_of(again), "none");
  }
}

std::string changed(void (*change)(Graph&)) {
  Graph graph = test_model({.layers = 1});
  change(graph);
  return error_of(graph);
}

Value& named(Graph& graph, std::string_view name) {
  return *std::ranges::find(graph.values, name, &Value::name);
}
Op& op_named(Graph& graph, std::string_view name) {
  return *std::ranges::find(graph.ops, name, &Op::name);
}

TEST(CheckOps, ErrorsNameTheOperator) {
  EXPECT_THAT(changed([](Graph& g) { op_named(g, "norm").kind = "rms_nrom"; }),
              HasSubstr("norm (rms_nrom): unknown operator kind \"rms_nrom\""));
  EXPECT_THAT(changed([](Graph& g) { named(g, "norm").type.dtype = DType::kF32; }),
              HasSubstr("norm (rms_norm): result 'norm' is declared f32[batch=16, seq=128, "
                        "hidden=64], but the operands give bf16["));
  EXPECT_THAT(changed([](Graph& g) { named(g, "head").type.dims[2].name = "words"; }),
              HasSubstr("declared bf16[batch=16, seq=128, words=1000]"));
  EXPECT_THAT(changed([](Graph& g) { op_named(g, "loss").inputs.pop_back(); }),
              HasSubstr("loss (cross_entropy): takes 2 operands, not 1"));
  EXPECT_THAT(changed([](Graph& g) { op_named(g, "loss").outputs.clear(); }),
              HasSubstr("loss (cross_entropy): gives 1 results, not 0"));
  EXPECT_THAT(changed([](Graph& g) { op_named(g, "layers.0.attn.core").attrs["casual"] = true; }),
              HasSubstr("layers.0.attn.core (attention): unknown attribute 'casual'"));
  EXPECT_THAT(changed([](Graph& g) { named(g, "head.weight").type.dims[1].size = 65; }),
              HasSubstr("head (linear): dimension 'hidden' has size 64 in one operand and 65"));
}

}  // namespace
}  // namespace meshwright
