#pragma once

#include <vector>

#include "ir/graph.h"

namespace meshwright {

/// Where the backward pass goes. One flag per value of the graph.
struct GradientFlow {
  /// Depends on a parameter by a path of floating-point values that no `detach` cuts (a parameter
  /// depends on itself).
  std::vector<bool> depends;
  /// A loss depends on it by such a path. Losses are the results of cross_entropy; in a graph
  /// without one, every floating-point result that no operator reads.
  std::vector<bool> reaches;
};

/// Linear in the size of the graph.
GradientFlow gradient_flow(const Graph& graph);

/// Whether a value has a gradient in the training step: it depends on a parameter and reaches a
/// loss. Of an operator without such a result, no backward pass is run and nothing is kept.
std::vector<bool> requires_gradient(const Graph& graph);

}  // namespace meshwright
