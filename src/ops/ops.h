#pragma once

#include "ops/op_def.h"

namespace meshwright {

// One definition per file; ops/table.cpp lists them all.
extern const OpDef kLinear;
extern const OpDef kRmsNorm;

}  // namespace meshwright
