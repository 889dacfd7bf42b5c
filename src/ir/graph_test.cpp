#include "ir/graph.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

Graph small() {
  const TensorType type{DType::kF32, {{"n", 4}}};
  Graph g;
  g.values = {{"x", type, ValueKind::kInput, OpId()},
              {"w", type, ValueKind::kParameter, OpId()},
              {"y", type, ValueKind::kActivation, OpId(0)}};
  g.ops = {{"add", "y", {}, {ValueId(0), ValueId(1)}, {ValueId(2)}}};
  return g;
}

std::string error_of(const Graph& graph) {
  try {
    check_graph(graph);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(CheckGraph, SaysWhatIsWrong) {
  EXPECT_EQ(error_of(small()), "none");
  EXPECT_EQ(parameter_count(small()), 4);
  Graph g = small();
  g.values[1].name = "x";
  EXPECT_THAT(error_of(g), HasSubstr("two values are named 'x'"));
  g = small();
  g.ops.push_back(g.ops[0]);
  EXPECT_THAT(error_of(g), HasSubstr("two operators are named 'y'"));
  g = small();
  g.ops[0].inputs[0] = ValueId(3);
  EXPECT_THAT(error_of(g), HasSubstr("y: operand is not a value of the graph"));
  g = small();
  g.ops[0].inputs[0] = ValueId(2);
  EXPECT_THAT(error_of(g), HasSubstr("operand 'y' is used before it is computed"));
  g = small();
  g.ops[0].outputs = {ValueId(0)};
  EXPECT_THAT(error_of(g), HasSubstr("value 'x' is computed twice"));
  g = small();
  g.ops.clear();
  EXPECT_THAT(error_of(g), HasSubstr("y: activation has no producer"));
  g = small();
  g.values[2].producer = OpId(1);
  EXPECT_THAT(error_of(g), HasSubstr("value 'y' names another producer"));
  g = small();
  g.values[0].producer = OpId(0);
  EXPECT_THAT(error_of(g), HasSubstr("only an activation has a producer"));
  g = small();
  g.values[0].type.dims[0].size = std::int64_t{1} << 41;
  EXPECT_THAT(error_of(g), HasSubstr("x: dimension 'n' must be between 1 and 2^40"));
  g = small();
  g.ops[0].attrs["p"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(error_of(g), HasSubstr("attribute 'p' must be finite"));
}

}  // namespace
}  // namespace meshwright
