#pragma once

#include "base/units.h"
#include "ir/graph.h"

namespace meshwright {

/// Floating-point operations of one training step over the graph's whole batch, as MFU counts them:
/// three times the forward pass (once where no gradient flows), nothing for recomputation. Causal
/// attention counts the half that is computed.
Flops model_flops(const Graph& graph);

/// Tokens (or images) per step: batch times the sequence length of the loss, or of the longest
/// sequence.
double tokens_per_step(const Graph& graph);

}  // namespace meshwright
