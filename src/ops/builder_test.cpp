#include "ops/builder.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace meshwright {
namespace {

TEST(GraphBuilder, InfersTypesAndCountsParameters) {
  GraphBuilder b("mlp");
  const ValueId x =
      b.input("x", {DType::kBf16, {{"batch", 8, 1}, {"seq", 4, 1}, {"hidden", 16, 1}}});
  ValueId y;
  {
    const auto scope = b.scope("layers.0");
    y = b.linear("up", b.rms_norm("norm", x), {"ffn", 64, 1}, true);
    y = b.linear("down", y, {"hidden", 16, 1}, false);
  }
  EXPECT_EQ(to_string(b.type(y)), "bf16[batch=8, seq=4, hidden=16]");
  const Graph graph = b.finish();
  EXPECT_EQ(parameter_count(graph), 16 + 16 * 64 + 64 + 64 * 16);
  EXPECT_EQ(graph.ops[1].name, "layers.0.up");
}

TEST(GraphBuilder, ErrorsNameTheOperator) {
  GraphBuilder b("bad");
  const ValueId x = b.input("x", {DType::kBf16, {{"batch", 8, 1}, {"hidden", 16, 1}}});
  const ValueId w = b.parameter("w", {{"ffn", 4, 1}, {"hidden", 15, 1}});
  try {
    b.op("linear", "up", {x, w});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("up (linear): dimension 'hidden' has size 16"));
  }
}

}  // namespace
}  // namespace meshwright
