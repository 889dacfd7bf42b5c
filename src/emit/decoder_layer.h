#pragma once

#include "emit/decoder_model.h"
#include "emit/graph_walk.h"

namespace meshwright {

struct LayerReading {
  DecoderLayer layer;
  ValueId input, output;  ///< The residual stream before and behind the layer.
};

/// Reads operators first..last-1 as one layer. Throws Unreadable.
LayerReading read_decoder_layer(const Graph& graph, int first, int last);

/// Reads a norm over the hidden dimension and accounts for it. Throws Unreadable.
DecoderNorm read_norm(GraphWalk& walk, const Op& op);

}  // namespace meshwright
