#include "plan/micro_batch_tables.h"

#include <gtest/gtest.h>

#include "ops/builder.h"

namespace meshwright {
namespace {

// Windows of 4 x 4 in an image of 8 x 12: 6 per sample, in the batch dimension.
Graph windows() {
  GraphBuilder b("windows");
  const ValueId x = b.input(
      "x",
      {DType::kBf16, {{"batch", 16, 1}, {"height", 8, 1}, {"width", 12, 1}, {"hidden", 8, 1}}});
  ValueId y = b.op("reshape", "split", {x},
                   {{"pattern", std::string("b (y p) (x q) c -> b y p x q c")},
                    {"sizes", std::string("p=4, q=4")}});
  y = b.op("transpose", "permute", {y}, {{"perm", std::vector<std::int64_t>{0, 1, 3, 2, 4, 5}}});
  y = b.op("reshape", "merge", {y},
           {{"pattern", std::string("b y x p q c -> (b y x) (p q) c")},
            {"names", std::string("p=window")}});
  b.linear("proj", y, {"ffn", 32, 1}, true);
  return b.finish();
}

TEST(MicroBatchTables, PartsOfASampleStayTogether) {
  const Graph graph = windows();
  const Op& proj = graph.ops.back();
  EXPECT_EQ(to_string(graph.value(proj.inputs[0]).type), "bf16[batch=96/6, window=16/4, hidden=8]");
  MicroBatchTables tables(graph);
  for (const std::int64_t samples : {4, 2, 16}) {
    EXPECT_EQ(tables.type(proj.inputs[0], samples).dims[0].size, samples * 6);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const Op& op = graph.ops[i];
      const Rule& rule = tables.rule(static_cast<int>(i), find_op(op.kind), samples);
      const auto results =
          infer_from_rule(rule, std::vector<TensorType>{tables.type(op.inputs[0], samples)});
      EXPECT_EQ(results[0].dims[0], tables.type(op.outputs[0], samples).dims[0]) << op.name;
    }
  }
}

}  // namespace
}  // namespace meshwright
