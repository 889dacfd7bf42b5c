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
extern const OpDef kReshape;
extern const OpDef kTranspose;
extern const OpDef kMoeRouter;
extern const OpDef kMoeDispatch;
extern const OpDef kGroupedLinear;
extern const OpDef kMoeCombine;
extern const OpDef kCrossEntropy;

/// The annotation of operators that act on each element by itself.
inline std::string same_shape(const OpContext&) { return "* -> *"; }

}  // namespace meshwright
