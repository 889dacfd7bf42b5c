#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace meshwright {

/// A run of consecutive operators that a pipeline may cut before and after: one layer, or what lies
/// between layers (embedding, head).
struct Segment {
  int first_op = 0;
  int last_op = 0;  ///< One past the end.
  std::string
      name;  ///< Module path up to its first numeric component, or the first operator's name.
  bool is_layer = false;  ///< Named by a layer index.
  int shape_class =
      0;  ///< Equal for isomorphic segments: same operators, types, wiring and gradients.
};

/// The part of a module path that names the layer: "layers.17" of "layers.17.attn.q_proj"; empty
/// when no component is a number.
std::string_view layer_path(std::string_view name);

/// The pass over the layers or slice of the sequence that a name belongs to: "recycle2" of
/// "recycle2.layers.17.msa", "slice0" of "slice0.lm_head"; empty for all others.
std::string_view round_path(std::string_view name);

/// Cuts a graph into segments by module path (the first numeric path component is the layer index;
/// rounds are cut apart too) and finds the isomorphic ones. Linear in the size of the graph.
std::vector<Segment> find_segments(const Graph& graph);

/// Number of distinct shape classes.
int shape_class_count(const std::vector<Segment>& segments);

}  // namespace meshwright
