#pragma once

#include "ir/graph.h"

namespace meshwright {

/// Checks every operator of a graph (one that check_graph accepts) against its definition: its kind
/// is known, its operands and attributes fit the rule, and its results have the types that follow.
/// Throws Error whose place names the operator. For graphs that did not come from GraphBuilder.
void check_ops(const Graph& graph);

}  // namespace meshwright
