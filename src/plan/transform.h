#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace meshwright {

/// What a transform is asked for.
struct TransformRequest {
  std::string transform;  ///< Name in the table.
  std::string match;      ///< Pattern of operator names (base/path_pattern.h); empty = all.
  std::string factor;     ///< Label of a factor: "heads", "ffn", "batch"; empty = the default.
  int parts = 1;
};

/// op-trans in time: a graph in which operators are replaced by `parts` operators on fresh views
/// that one device runs in turn. The result computes the same. One file each in plan/transforms/,
/// one line each in transforms/table.cpp.
struct Transform {
  std::string_view name;
  std::string_view summary;
  /// Throws Error when the request does not fit the graph.
  Graph (*apply)(const Graph& graph, const TransformRequest& request);
};

std::span<const Transform* const> all_transforms();
/// Throws Error naming the known ones.
const Transform& find_transform(std::string_view name);
/// Finds the transform and applies it; checks the result's operators.
Graph apply_transform(const Graph& graph, const TransformRequest& request);

/// Whether any operator is a part that `co_shard` made.
bool has_co_shards(const Graph& graph);

/// Most parts of one transform (operands of `concat`).
inline constexpr int kMaxTransformParts = 64;

extern const Transform kCoShard;
extern const Transform kSliceSequence;

}  // namespace meshwright
