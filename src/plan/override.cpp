#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/strategy.h"

namespace meshwright {
AxisList axes_named(std::string_view name, const Roles& roles, const Mesh& mesh) {
  for (const NamedRole& role : named_roles()) {
    if (role.name == name) return roles.*role.field;
  }
  if (const int axis = mesh.axis(name); axis >= 0) return {axis};
  AxisList list;
  for (std::size_t i = mesh.axes.size(); i-- > 0;) {
    const std::string_view axis = mesh.axes[i].name;
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (axis.starts_with(name) && axis.size() > name.size() &&
        std::all_of(axis.begin() + static_cast<std::ptrdiff_t>(name.size()), axis.end(),
                    is_digit)) {
      list.push_back(static_cast<int>(i));
    }
  }
  if (!list.empty() || name == "dp" || name == "cp" || name == "tp") return list;
  std::string known;
  for (const MeshAxis& axis : mesh.axes) known += axis.name + ", ";
  for (const NamedRole& role : named_roles()) known += fmt::format("{}, ", role.name);
  throw Error(fmt::format("no axis or role is named '{}'", name), {},
              "known: " + known.substr(0, known.size() - 2));
}

Strategy overridden(Strategy strategy, const Rule& rule, const OpOverride& override_rule,
                    const Roles& roles, const Mesh& mesh) {
  if (override_rule.replicate) {
    for (AxisList& axes : strategy.factors) axes = {};
    strategy.ring = false;
  }
  for (const OpOverride::Split& split : override_rule.splits) {
    bool found = false;
    std::vector<std::string> known;
    AxisList axes;
    for (const std::string& name : split.axes) {
      for (int axis : axes_named(name, roles, mesh)) {
        if (axes.contains(axis)) {
          throw Error(fmt::format("axis '{}' splits '{}' twice",
                                  mesh.axes[static_cast<std::size_t>(axis)].name, split.factor));
        }
        axes.push_back(axis);
      }
    }
    for (std::size_t i = 0; i < rule.factors.size(); ++i) {
      const Factor& f = rule.factors[i];
      known.push_back(f.label);
      if (f.label != split.factor && f.id != split.factor) continue;
      if (f.kind == FactorKind::kFrozen) {
        // May be left whole where the roles would pass it around a ring.
        if (axes.empty()) strategy.factors[i] = {}, found = true;
        continue;
      }
      found = true;
      // The axes leave the factors that had them.
      for (std::size_t j = 0; j < rule.factors.size(); ++j) {
        if (j == i) continue;
        AxisList rest;
        for (int axis : strategy.factors[j]) {
          if (!axes.contains(axis)) rest.push_back(axis);
        }
        strategy.factors[j] = rest;
      }
      if (mesh.size(axes) > f.size / f.unit) {
        throw Error(fmt::format("'{}' has {} parts at most, not {}", split.factor, f.size / f.unit,
                                mesh.size(axes)));
      }
      strategy.factors[i] = axes;
      break;
    }
    if (!found) {
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      std::string list;
      for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
      throw Error(fmt::format("no factor '{}' that may be split", split.factor), {},
                  "the operator's factors are " + list);
    }
  }
  strategy.ring = false;
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    strategy.ring |= rule.factors[i].kind == FactorKind::kFrozen && !strategy.factors[i].empty();
  }
  return strategy;
}

void check_strategy(const Strategy& strategy, const Rule& rule, std::span<const TensorType> inputs,
                    std::span<const TensorType> outputs, const Mesh& mesh) {
  const auto check = [&](const RuleTensor& tensor, const TensorType& type) {
    if (tensor.opaque) return;
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
      const RuleDim& rd = tensor.dims[d];
      const Dim& dim = type.dims[d];
      bool single = true;  // Whether the outer factors are split into single elements.
      std::int64_t inner = dim.size;
      for (int f : rd.factors) {
        const Factor& factor = rule.factors[static_cast<std::size_t>(f)];
        const std::int64_t parts = mesh.size(strategy.factors[static_cast<std::size_t>(f)]);
        const std::int64_t size = rd.scaled ? dim.size : factor.size;
        inner /= std::max<std::int64_t>(size, 1);
        if (parts == 1) {
          single &= size == 1;
          continue;
        }
        if (!single) {
          throw Error(
              fmt::format("'{}' is split inside '{}', whose outer factor is not split into "
                          "single elements",
                          factor.label, dim.name));
        }
        if (rd.scaled && (size % parts != 0 || factor.size % parts != 0)) {
          throw Error(fmt::format("'{}' of {} elements cannot be split evenly into {} parts",
                                  dim.name, dim.size, parts));
        }
        // A cut of the dimension falls on its units; it must fall between elements of the factor.
        if (size % parts != 0 && inner > 1 && dim.unit % inner != 0) {
          throw Error(fmt::format("'{}' of {} elements cannot be split evenly into {} parts",
                                  factor.label, size, parts));
        }
        single &= parts == size;
      }
    }
  };
  for (std::size_t k = 0; k < inputs.size(); ++k) check(rule.inputs[k], inputs[k]);
  for (std::size_t k = 0; k < outputs.size(); ++k) check(rule.outputs[k], outputs[k]);
}

}  // namespace meshwright
