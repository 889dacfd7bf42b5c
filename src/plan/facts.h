#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "plan/segments.h"

namespace meshwright {

/// What the legality of degrees depends on, read off a graph once.
struct ModelFacts {
  /// Size in units of the dimension that most values with a sequence (without one: most values)
  /// have under this name; 0 = the model has none.
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t experts = 0;
  std::int64_t expert_ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  int layers = 0;                            ///< Layer segments.
  std::vector<std::int64_t> all_kv_heads;    ///< Distinct, ascending.
  std::vector<std::int64_t> sequence_sizes;  ///< Distinct sizes of sequence dimensions, ascending.
};
ModelFacts model_facts(const Graph& graph, const std::vector<Segment>& segments);

/// All divisors, ascending.
std::vector<std::int64_t> divisors(std::int64_t n);
/// "1, 2, 4, 7, 14, 28".
std::string join(const std::vector<std::int64_t>& values);

}  // namespace meshwright
