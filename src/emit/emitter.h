#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.h"
#include "ir/graph.h"
#include "plan/plan.h"
#include "plan/segments.h"

namespace meshwright {

/// A plan and what it speaks of. The references must outlive it.
struct EmitInput {
  const Plan& plan;
  const Graph& graph;
  const std::vector<Segment>& segments;
  const Cluster& cluster;
  std::string model_name;  ///< For comments in the files.
};

struct EmittedFile {
  std::string path;  ///< Relative, no directories above it.
  std::string content;
};

/// Turns plans into what another program needs to train with them. One file each in emit/, one line
/// each in emit/table.cpp.
struct Emitter {
  std::string_view name;     ///< "megatron".
  std::string_view summary;  ///< One sentence.
  /// What of the plan the target cannot express or would refuse, one sentence each; empty: emit
  /// works.
  std::vector<std::string> (*why_not)(const EmitInput& input);
  /// Throws Error with the first sentence when why_not gives some.
  std::vector<EmittedFile> (*emit)(const EmitInput& input);
};

std::span<const Emitter* const> all_emitters();
/// Throws Error naming the known ones.
const Emitter& find_emitter(std::string_view name);

extern const Emitter kMegatronEmitter;

}  // namespace meshwright
