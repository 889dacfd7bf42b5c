#include <gmock/gmock.h>

#include "ops/op_def.h"

namespace meshwright {
namespace {

class AllOps : public testing::TestWithParam<const OpDef*> {};

TEST_P(AllOps, ExamplesInfer) {
  const OpDef& def = *GetParam();
  const auto examples = def.examples();
  EXPECT_GE(examples.size(), 2u);
  for (const OpDef::Example& example : examples) {
    const OpContext c{example.attrs, example.inputs, {}};
    const std::vector<TensorType> results = infer(def, c);
    ASSERT_FALSE(results.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AllOps, testing::ValuesIn(all_ops().begin(), all_ops().end()),
                         [](const auto& param) { return std::string(param.param->kind); });

}  // namespace
}  // namespace meshwright
