#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

constexpr const OpDef* kOps[] = {
    &kLinear,      &kMatmul,        &kEmbedding,  &kLayerNorm,    &kRmsNorm,   &kRope,
    &kAttention,   &kSoftmax,       &kGelu,       &kGeluTanh,     &kQuickGelu, &kSilu,
    &kRelu,        &kReluSquared,   &kTanh,       &kSigmoid,      &kGated,     &kAdd,
    &kMul,         &kScale,         &kDropout,    &kReshape,      &kTranspose, &kMoeRouter,
    &kMoeDispatch, &kGroupedLinear, &kMoeCombine, &kCrossEntropy,
};

}  // namespace

std::span<const OpDef* const> all_ops() { return kOps; }

const OpDef& find_op(std::string_view kind) {
  for (const OpDef* def : kOps) {
    if (def->kind == kind) return *def;
  }
  std::string known;
  for (const OpDef* def : kOps) known += fmt::format("{}{}", known.empty() ? "" : ", ", def->kind);
  throw Error(fmt::format("unknown operator kind '{}'", kind), {}, "known: " + known);
}

}  // namespace meshwright
