#include <fmt/format.h>

#include "base/error.h"
#include "base/spelling.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// clang-format off: one line each.
constexpr const OpDef* kOps[] = {
    &kLinear,
    &kMatmul,
    &kEmbedding,
    &kLayerNorm,
    &kRmsNorm,
    &kRope,
    &kAttention,
    &kRelativeBias,
    &kSoftmax,
    &kGelu,
    &kGeluTanh,
    &kQuickGelu,
    &kSilu,
    &kRelu,
    &kReluSquared,
    &kTanh,
    &kSigmoid,
    &kGated,
    &kAdd,
    &kMul,
    &kScale,
    &kDropout,
    &kDetach,
    &kConv2d,
    &kMeanPool,
    &kReshape,
    &kTranspose,
    &kSlice,
    &kConcat,
    &kPad,
    &kRoll,
    &kMoeRouter,
    &kMoeDispatch,
    &kGroupedLinear,
    &kMoeCombine,
    &kCrossEntropy,
    &kPointwise,
    &kOverDims,
    &kReduce,
    &kResample,
    &kGather,
    &kConv,
    &kBatchNorm,
    &kInstanceNorm,
    &kGroupNorm,
    &kOpaque,
    &kAdamw,
    &kSgd,
};
// clang-format on

}  // namespace

std::span<const OpDef* const> all_ops() { return kOps; }

const OpDef& find_op(std::string_view kind) {
  for (const OpDef* def : kOps) {
    if (def->kind == kind) return *def;
  }
  std::vector<std::string> kinds;
  for (const OpDef* def : kOps) kinds.emplace_back(def->kind);
  throw Error(fmt::format("unknown operator kind {}", in_quotes(kind)), {},
              fmt::format("nearest: {}", fmt::join(nearest_names(kind, kinds, 3), ", ")));
}

}  // namespace meshwright
