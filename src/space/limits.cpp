#include "space/limits.h"

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

struct NamedMask {
  bool known = true;
  std::uint32_t mask = 0;
};

NamedMask mask_of(const std::vector<std::string>& names, const Roles& roles, const Mesh& mesh) {
  NamedMask result;
  try {
    for (const std::string& name : names) result.mask |= axes_named(name, roles, mesh).mask();
  } catch (const Error&) {
    result.known = false;
  }
  return result;
}

bool named(const Factor& f, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return f.label == name || f.id == name; });
}

}  // namespace

int factor_named(const Rule& rule, std::string_view name) {
  int found = -1;
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    const Factor& f = rule.factors[i];
    if (f.label != name && f.id != name) continue;
    if (f.kind != FactorKind::kFrozen) return static_cast<int>(i);
    if (found < 0) found = static_cast<int>(i);
  }
  return found;
}

bool obeys(const SpaceRule& r, const Rule& rule, const Strategy& strategy, const Roles& roles,
           const Mesh& mesh) {
  const auto parts = [&](int factor) {
    return std::int64_t{mesh.size(strategy.factors[static_cast<std::size_t>(factor)])};
  };
  std::uint32_t used = 0;
  for (const AxisList& axes : strategy.factors) used |= axes.mask();
  const std::uint32_t all = (1u << mesh.axes.size()) - 1;
  const bool replicated = used != all;

  std::uint32_t required = 0;
  for (const OpOverride::Split& split : r.split) {
    const int factor = factor_named(rule, split.factor);
    if (factor < 0) continue;
    const NamedMask wanted = mask_of(split.axes, roles, mesh);
    if (!wanted.known) return false;
    if (strategy.factors[static_cast<std::size_t>(factor)].mask() != wanted.mask) return false;
    required |= wanted.mask;
  }
  if (r.replicate && (used & ~required) != 0) return false;
  for (const std::string& name : r.must_split) {
    const int factor = factor_named(rule, name);
    if (factor >= 0 && parts(factor) == 1) return false;
  }
  for (const FactorDegree& d : r.degree) {
    const int factor = factor_named(rule, d.factor);
    if (factor >= 0 && !d.degree.contains(parts(factor))) return false;
  }
  if (r.allow) {
    const SplitLimit& l = *r.allow;
    const NamedMask axes = l.axes.empty() ? NamedMask{true, all} : mask_of(l.axes, roles, mesh);
    for (std::size_t i = 0; i < rule.factors.size(); ++i) {
      const AxisList& split = strategy.factors[i];
      if (split.empty()) continue;
      if (!l.factors.empty() && !named(rule.factors[i], l.factors)) return false;
      if (!axes.known || (split.mask() & ~axes.mask) != 0) return false;
      if (l.max_degree != 0 && mesh.size(split) > l.max_degree) return false;
    }
    for (const FactorDegree& d : l.degree) {
      const int factor = factor_named(rule, d.factor);
      if (factor >= 0 && parts(factor) != 1 && !d.degree.contains(parts(factor))) return false;
    }
    if (l.replicate == false && replicated) return false;
  }
  if (r.forbid) {
    const SplitLimit& l = *r.forbid;
    if (!l.factors.empty() || !l.axes.empty()) {
      // An axis that the mesh lacks splits nothing.
      const NamedMask axes = l.axes.empty() ? NamedMask{true, all} : mask_of(l.axes, roles, mesh);
      for (std::size_t i = 0; i < rule.factors.size() && axes.known; ++i) {
        if (!l.factors.empty() && !named(rule.factors[i], l.factors)) continue;
        if ((strategy.factors[i].mask() & axes.mask) != 0) return false;
      }
    }
    for (const FactorDegree& d : l.degree) {
      const int factor = factor_named(rule, d.factor);
      if (factor >= 0 && parts(factor) != 1 && d.degree.contains(parts(factor))) return false;
    }
    if (l.replicate == true && replicated) return false;
  }
  return true;
}

}  // namespace meshwright
