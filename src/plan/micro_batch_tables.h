#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "mesh/sharding.h"
#include "ops/op_def.h"

namespace meshwright {

/// Types and rules of a graph for one number of samples per micro-batch. Layouts share them:
/// between two layouts only the batch changes.
class MicroBatchTables {
 public:
  explicit MicroBatchTables(const Graph& graph)
      : graph_(graph), types_(graph.values.size()), rules_(graph.ops.size()) {}

  /// The type of a value when "batch" dimensions hold `samples` samples. The unit of such a
  /// dimension is what one sample has of it (its windows, in Swin).
  const TensorType& type(ValueId id, std::int64_t samples) {
    SampledType& entry = types_[id.index()];
    if (entry.samples == samples) return entry.type;
    if (entry.samples == 0) entry.type = graph_.value(id).type;
    for (Dim& dim : entry.type.dims) {
      if (dim.name == "batch") dim.size = samples * dim.unit;
    }
    entry.samples = samples;
    return entry.type;
  }

  /// The bound rule of an operator. Valid until asked for with another number of samples.
  const Rule& rule(int index, const OpDef& def, std::int64_t samples) {
    SampledRule& entry = rules_[static_cast<std::size_t>(index)];
    if (entry.samples == samples) return entry.rule;
    const bool batch_is_a_factor =
        entry.samples != 0 &&
        std::all_of(entry.rule.factors.begin(), entry.rule.factors.end(), [&](const Factor& f) {
          return f.label != "batch" || f.size == entry.samples * f.unit;
        });
    if (batch_is_a_factor) {
      for (Factor& f : entry.rule.factors) {
        if (f.label == "batch") f.size = samples * f.unit;
      }
    } else {
      const Op& op = graph_.ops[static_cast<std::size_t>(index)];
      std::vector<TensorType> types;
      for (ValueId id : op.inputs) types.push_back(type(id, samples));
      entry.rule = rule_of(def, {op.attrs, types, {}});
    }
    entry.samples = samples;
    return entry.rule;
  }

  ReshardCache& reshards() { return reshards_; }

 private:
  struct SampledType {
    std::int64_t samples = 0;  // 0 = not made yet.
    TensorType type;
  };
  struct SampledRule {
    std::int64_t samples = 0;
    Rule rule;
  };
  const Graph& graph_;
  std::vector<SampledType> types_;
  std::vector<SampledRule> rules_;
  ReshardCache reshards_;
};

}  // namespace meshwright
