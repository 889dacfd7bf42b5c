#pragma once

#include "ops/op_def.h"

namespace meshwright {

// One definition per file (kin in one); ops/table.cpp lists them all.
extern const OpDef kLinear;
extern const OpDef kMatmul;
extern const OpDef kEmbedding;
extern const OpDef kLayerNorm;
extern const OpDef kRmsNorm;
extern const OpDef kRope;
extern const OpDef kAttention;
extern const OpDef kRelativeBias;
extern const OpDef kSoftmax;
extern const OpDef kGelu;
extern const OpDef kGeluTanh;
extern const OpDef kQuickGelu;
extern const OpDef kSilu;
extern const OpDef kRelu;
extern const OpDef kReluSquared;
extern const OpDef kTanh;
extern const OpDef kSigmoid;
extern const OpDef kGated;
extern const OpDef kAdd;
extern const OpDef kMul;
extern const OpDef kScale;
extern const OpDef kDropout;
extern const OpDef kDetach;
extern const OpDef kConv2d;
extern const OpDef kMeanPool;
extern const OpDef kReshape;
extern const OpDef kTranspose;
extern const OpDef kSlice;
extern const OpDef kConcat;
extern const OpDef kPad;
extern const OpDef kRoll;
extern const OpDef kMoeRouter;
extern const OpDef kMoeDispatch;
extern const OpDef kGroupedLinear;
extern const OpDef kMoeCombine;
extern const OpDef kCrossEntropy;
extern const OpDef kPointwise;
extern const OpDef kOverDims;
extern const OpDef kReduce;
extern const OpDef kResample;
extern const OpDef kGather;
extern const OpDef kConv;
extern const OpDef kBatchNorm;
extern const OpDef kInstanceNorm;
extern const OpDef kGroupNorm;
extern const OpDef kOpaque;
extern const OpDef kAdamw;
extern const OpDef kSgd;

/// The annotation of operators that act on each element by itself.
inline std::string same_shape(const OpContext&) { return "* -> *"; }

/// The dim of operand 0 (or of a tensor of `rank`) that an attribute numbers; negative counts from
/// the end.
std::size_t dim_attr(const OpContext& context, std::string_view name, std::size_t rank);
inline std::size_t dim_attr(const OpContext& context, std::string_view name) {
  return dim_attr(context, name, context.inputs[0].dims.size());
}

/// The annotation of operators that change the size of one dim: "a0 a1^ a2 -> a0 a1' a2".
std::string frozen_dim(std::size_t rank, std::size_t dim);

}  // namespace meshwright
