#include <fmt/format.h>

#include "base/error.h"
#include "base/path_pattern.h"
#include "base/spelling.h"
#include "ops/check_ops.h"
#include "plan/transform.h"

namespace meshwright {
namespace {

constexpr const Transform* kTransforms[] = {
    &kCoShard,
    &kSliceSequence,
};

}  // namespace

std::span<const Transform* const> all_transforms() { return kTransforms; }

const Transform& find_transform(std::string_view name) {
  std::string known;
  for (const Transform* transform : kTransforms) {
    if (transform->name == name) return *transform;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", transform->name);
  }
  throw Error(fmt::format("unknown transform {}", in_quotes(name)), {}, "known: " + known);
}

Graph apply_transform(const Graph& graph, const TransformRequest& request) {
  const Transform& transform = find_transform(request.transform);
  if (request.parts < 1 || request.parts > kMaxTransformParts) {
    throw Error(fmt::format("{} takes 1 to {} parts, not {}", transform.name, kMaxTransformParts,
                            request.parts));
  }
  if (!request.match.empty()) check_path_pattern(request.match);
  Graph result = transform.apply(graph, request);
  check_ops(result);
  return result;
}

}  // namespace meshwright
