#include "plan/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/strategy.h"

namespace meshwright {

ModelFacts model_facts(const Graph& graph, const std::vector<Segment>& segments) {
  // Values with a sequence dimension come first: an image tower beside a language model does not
  // decide, it stays whole where its sizes do not divide.
  using Counts = std::map<std::string, std::map<std::int64_t, int>, std::less<>>;
  Counts counts, in_sequence;
  std::set<std::int64_t> kv;
  std::set<std::int64_t> sequences;
  for (const Value& value : graph.values) {
    const bool tokens = std::any_of(value.type.dims.begin(), value.type.dims.end(),
                                    [](const Dim& dim) { return dim.name == "seq"; });
    for (const Dim& dim : value.type.dims) {
      ++counts[dim.name][dim.size / dim.unit];
      if (tokens) ++in_sequence[dim.name][dim.size / dim.unit];
      if (dim.name == "kv_heads") kv.insert(dim.size / dim.unit);
      if (is_sequence_label(dim.name)) sequences.insert(dim.size);
    }
  }
  const auto most_frequent = [&](std::string_view name) -> std::int64_t {
    auto it = in_sequence.find(name);
    if (it == in_sequence.end()) it = counts.find(name);
    if (it == counts.end()) return 0;
    return std::max_element(it->second.begin(), it->second.end(),
                            [](const auto& a, const auto& b) {
                              return a.second != b.second ? a.second < b.second : a.first > b.first;
                            })
        ->first;
  };
  ModelFacts facts;
  facts.heads = most_frequent("heads");
  facts.kv_heads = most_frequent("kv_heads");
  facts.ffn = most_frequent("ffn");
  facts.experts = most_frequent("experts");
  facts.expert_ffn = most_frequent("expert_ffn");
  facts.vocab = most_frequent("vocab");
  facts.hidden = most_frequent("hidden");
  facts.batch = most_frequent("batch");
  facts.seq = counts.contains("seq") ? most_frequent("seq") : most_frequent("patches");
  facts.all_kv_heads.assign(kv.begin(), kv.end());
  facts.sequence_sizes.assign(sequences.begin(), sequences.end());
  for (const Segment& s : segments) facts.layers += s.is_layer;
  return facts;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d * d != n) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::string join(const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::int64_t v : values) text += fmt::format("{}{}", text.empty() ? "" : ", ", v);
  return text;
}

}  // namespace meshwright
