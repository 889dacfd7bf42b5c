#include "plan/strategy.h"

#include <algorithm>
#include <array>

namespace meshwright {
namespace {

constexpr std::array<std::string_view, 4> kSequenceLabels = {"seq", "src_seq", "patches", "keys"};
constexpr std::array<std::string_view, 4> kTensorLabels = {"heads", "kv_heads", "ffn", "vocab"};

template <std::size_t N>
bool one_of(std::string_view label, const std::array<std::string_view, N>& labels) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

AxisList dividing_prefix(const AxisList& axes, std::int64_t units, const Mesh& mesh) {
  AxisList prefix;
  std::int64_t parts = 1;
  for (int axis : axes) {
    parts *= mesh.axes[static_cast<std::size_t>(axis)].size;
    if (units % parts != 0) break;
    prefix.push_back(axis);
  }
  return prefix;
}

Sharding tensor_sharding(const RuleTensor& tensor, const Strategy& strategy) {
  Sharding sharding;
  sharding.rank = static_cast<std::uint8_t>(tensor.dims.size());
  std::uint32_t used = 0;
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    for (int f : tensor.dims[d].factors) {
      // An axis may split query and key positions at once: of a tensor with both (a bias), the
      // first.
      for (int axis : strategy.factors[static_cast<std::size_t>(f)]) {
        if (!(used >> axis & 1u)) sharding.dims[d].push_back(axis);
        used |= 1u << axis;
      }
    }
  }
  return sharding;
}

std::uint32_t tensor_mask(const RuleTensor& tensor, const Strategy& strategy) {
  std::uint32_t mask = 0;
  for (const RuleDim& dim : tensor.dims) {
    for (int f : dim.factors) mask |= strategy.factors[static_cast<std::size_t>(f)].mask();
  }
  return mask;
}

}  // namespace

std::span<const NamedRole> named_roles() {
  static constexpr NamedRole kRoles[] = {
      {"data", &Roles::data},
      {"context", &Roles::context},
      {"tensor", &Roles::tensor},
      {"expert", &Roles::expert},
      {"expert_tensor", &Roles::expert_tensor},
      {"expert_data", &Roles::expert_data},
      {"expert_context", &Roles::expert_context},
  };
  return kRoles;
}

bool is_sequence_label(std::string_view label) { return one_of(label, kSequenceLabels); }
bool is_tensor_label(std::string_view label) { return one_of(label, kTensorLabels); }

Strategy strategy_for(const Rule& rule, std::span<const TensorType> inputs, const Roles& roles,
                      const Mesh& mesh, bool ring) {
  Strategy strategy;
  strategy.factors.resize(rule.factors.size());
  const bool grouped = std::any_of(rule.factors.begin(), rule.factors.end(), [](const Factor& f) {
    return f.kind != FactorKind::kFrozen && f.label == "experts";
  });

  bool uses_tensor = false;
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    const Factor& f = rule.factors[i];
    AxisList& axes = strategy.factors[i];
    const std::int64_t units = f.size / f.unit;
    if (f.kind == FactorKind::kFrozen) continue;
    if (f.label == "batch") {
      axes = dividing_prefix(grouped ? roles.expert_data : roles.data, units, mesh);
    } else if (grouped && f.label == "experts") {
      axes = dividing_prefix(roles.expert, units, mesh);
    } else if (f.label == "expert_ffn") {
      axes = dividing_prefix(roles.expert_tensor, units, mesh);
    } else if (f.label == "vocab") {
      axes = roles.tensor;
      uses_tensor = true;
    } else if (is_tensor_label(f.label) && !grouped) {
      axes = dividing_prefix(roles.tensor, units, mesh);
      uses_tensor |= !axes.empty();
    }
  }
  // Groups such as (kv_heads query_heads_per_kv): axes that the leading factor cannot take go to
  // the next.
  for (std::size_t t = 0; t < rule.inputs.size(); ++t) {
    if (rule.inputs[t].opaque) continue;
    for (std::size_t d = 0; d < rule.inputs[t].dims.size(); ++d) {
      const RuleDim& rd = rule.inputs[t].dims[d];
      const Dim& dim = inputs[t].dims[d];
      if (rd.factors.size() < 2 || !is_tensor_label(dim.name) || grouped) continue;
      const std::uint32_t taken = tensor_mask(rule.inputs[t], strategy);
      for (int axis : dividing_prefix(roles.tensor, dim.size / dim.unit, mesh)) {
        if (taken >> axis & 1u) continue;
        const int parts = mesh.axes[static_cast<std::size_t>(axis)].size;
        for (int f : rd.factors) {
          const Factor& factor = rule.factors[static_cast<std::size_t>(f)];
          AxisList& axes = strategy.factors[static_cast<std::size_t>(f)];
          if (factor.kind != FactorKind::kSpatial) continue;
          if (factor.size % (static_cast<std::int64_t>(mesh.size(axes)) * parts) != 0) continue;
          axes.push_back(axis);
          uses_tensor = true;
          break;
        }
      }
    }
  }
  // Keys go round the ring for queries that are split the same way; where queries range over
  // something else (windows, residues), every device would do the whole attention.
  const bool queries_split =
      ring &&
      std::any_of(
          rule.outputs[0].dims.begin(), rule.outputs[0].dims.end(), [&](const RuleDim& dim) {
            return dim.factors.size() == 1 &&
                   rule.factors[static_cast<std::size_t>(dim.factors[0])].kind ==
                       FactorKind::kFrozen &&
                   is_sequence_label(rule.factors[static_cast<std::size_t>(dim.factors[0])].label);
          });
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    const Factor& f = rule.factors[i];
    if (!is_sequence_label(f.label)) continue;
    if (f.kind == FactorKind::kFrozen && !queries_split) continue;
    AxisList axes = grouped ? roles.expert_context : roles.context;
    if (!grouped && roles.sequence_parallel && !uses_tensor && f.kind != FactorKind::kFrozen) {
      axes.append(roles.tensor);
    }
    axes = dividing_prefix(axes, f.size, mesh);
    if (f.kind == FactorKind::kFrozen) strategy.ring |= !axes.empty();
    strategy.factors[i] = axes;
  }
  return strategy;
}

Sharding input_sharding(const Rule& rule, const Strategy& strategy, std::size_t input) {
  return tensor_sharding(rule.inputs[input], strategy);
}

Sharding output_sharding(const Rule& rule, const Strategy& strategy, std::size_t output) {
  Sharding sharding = tensor_sharding(rule.outputs[output], strategy);
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    if (rule.factors[i].kind == FactorKind::kSum) sharding.partial |= strategy.factors[i].mask();
  }
  return sharding;
}

Sharding input_gradient_sharding(const Rule& rule, const Strategy& strategy, std::size_t input) {
  Sharding sharding = tensor_sharding(rule.inputs[input], strategy);
  std::uint32_t used = 0;
  for (const AxisList& axes : strategy.factors) used |= axes.mask();
  sharding.partial = used & ~tensor_mask(rule.inputs[input], strategy);
  return sharding;
}

}  // namespace meshwright
