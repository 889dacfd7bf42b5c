#include <fmt/format.h>

#include "verify/segment_replay.h"

namespace meshwright {
namespace {

// Whether `whole` followed by exactly the axes of `group`, in any order, is `cut`.
bool cut_by(const AxisList& whole, const AxisList& cut, const AxisList& group) {
  if (cut.size() != whole.size() + group.size()) return false;
  for (int i = 0; i < whole.size(); ++i) {
    if (whole[i] != cut[i]) return false;
  }
  std::uint32_t tail = 0;
  for (int i = whole.size(); i < cut.size(); ++i) tail |= 1u << cut[i];
  return tail == group.mask();
}

std::string places_text(const AxisList& group, const Mesh& mesh) {
  return fmt::format("devices along {}", axis_names(group.mask(), mesh));
}

// Whether the parts along `group` of `cut` tile `whole`, each axis cutting one dimension.
std::string tiling_fault(const Placement& whole, const Placement& cut, const AxisList& group,
                         SpanTable& spans) {
  const std::uint32_t mask = group.mask();
  if (whole.flat == cut.flat) {
    std::uint32_t used = 0;
    for (std::size_t d = 0; d < cut.dims.size(); ++d) {
      const std::uint32_t mine = spans.axes(cut.dims[d]) & mask;
      if ((used & mine) != 0) return "cut two dimensions at once: their parts leave gaps";
      used |= mine;
      const SpanId all = spans.gather(cut.dims[d], mask);
      if (all == kNoSpan) return "hold parts that do not join without gaps";
      if (all != whole.dims[d]) return "together hold another region than this";
    }
    if (used != mask) {
      return fmt::format("hold the same parts along {}", axis_names(mask & ~used, spans.mesh()));
    }
    return {};
  }
  if (whole.dims != cut.dims) return "hold flat pieces of another region";
  if (!cut_by(whole.flat, cut.flat, group)) return "do not hold the flat pieces of this, each once";
  return {};
}

std::string open_fault(const Terms& terms, std::uint32_t mask, const Mesh& mesh) {
  for (const Term& t : terms) {
    if ((t.open & mask) != 0) {
      return fmt::format("parts of a sum that is due along {} are joined as if they were equal",
                         axis_names(t.open & mask, mesh));
    }
  }
  return {};
}

// Adds over `mask`: every term must have a part on each member, no part on two.
std::string reduce(Terms& terms, std::uint32_t mask, const Mesh& mesh) {
  for (Term& t : terms) {
    if (const std::uint32_t twice = mask & ~t.open; twice != 0) {
      return fmt::format("every device along {} adds the same term: it would count {} times",
                         axis_names(twice, mesh), mesh.size(axes_of_mask(twice)));
    }
    t.open &= ~mask;
  }
  return {};
}

}  // namespace

std::string axis_names(std::uint32_t mask, const Mesh& mesh) {
  std::string text;
  for (std::size_t a = 0; a < 32; ++a) {
    if ((mask >> a & 1u) == 0) continue;
    if (!text.empty()) text += '+';
    text += a < mesh.axes.size() ? mesh.axes[a].name : fmt::format("axis {}", a);
  }
  return text.empty() ? "no axis" : text;
}

Placement placement_of(const TensorType& type, const Buffer& buffer, SpanTable& spans) {
  Placement place;
  place.flat = buffer.flat;
  place.halo = buffer.halo;
  place.dims.reserve(type.dims.size());
  for (std::size_t d = 0; d < type.dims.size(); ++d) {
    const Dim& dim = type.dims[d];
    place.dims.push_back(d < buffer.form.rank ? spans.split(dim.size, dim.unit, buffer.form.dims[d])
                                              : spans.whole(dim.size));
    place.mask |= spans.axes(place.dims.back());
  }
  return place;
}

bool same_place(const Placement& a, const Placement& b) {
  return a.dims == b.dims && a.flat == b.flat && a.halo == b.halo;
}

std::string region_text(const TensorType& type, const Placement& place, const SpanTable& spans,
                        std::span<const int> coordinates) {
  std::string text = "[";
  for (std::size_t d = 0; d < place.dims.size(); ++d) {
    const Interval i = spans.at(place.dims[d], coordinates);
    text += fmt::format("{}{} {}:{}", d > 0 ? ", " : "", type.dims[d].name, i.begin, i.end);
  }
  text += "]";
  if (!place.flat.empty()) {
    std::int64_t index = 0, parts = 1;
    for (int axis : place.flat) {
      const auto a = static_cast<std::size_t>(axis);
      index = index * spans.mesh().axes[a].size + coordinates[a];
      parts *= spans.mesh().axes[a].size;
    }
    text += fmt::format(" flat piece {} of {}", index + 1, parts);
  }
  return text;
}

std::string apply_slice(const Placement& in, const Placement& out, SpanTable& spans) {
  if (in.halo.dim >= 0 || out.halo.dim >= 0) return "rows of neighbours cannot be sliced";
  if (in.flat == out.flat) {
    for (std::size_t d = 0; d < in.dims.size(); ++d) {
      if (!spans.within(out.dims[d], in.dims[d])) return "the slice reaches out of its operand";
    }
    if (!in.flat.empty() && in.dims != out.dims)
      return "a flat piece is no slice of another region";
    return {};
  }
  if (in.dims != out.dims || out.flat.size() < in.flat.size()) {
    return "the slice reaches out of its operand";
  }
  for (int i = 0; i < in.flat.size(); ++i) {
    if (in.flat[i] != out.flat[i]) return "the slice reaches out of its operand";
  }
  return {};
}

// Rows of neighbours, `with`, beside the parts that `without` has: every part is large enough that
// they come from the next one, and the group is who shares the dimension.
std::string halo_fault(const Placement& with, const Placement& without, const AxisList& group,
                       SpanTable& spans) {
  if (without.halo.dim >= 0 || with.halo.dim < 0)
    return "only one side may have rows of neighbours";
  if (with.dims != without.dims || !with.flat.empty() || !without.flat.empty())
    return "neighbours exchange rows of another region";
  const auto d = static_cast<std::size_t>(with.halo.dim);
  if (d >= with.dims.size() || spans.axes(with.dims[d]) != group.mask())
    return "the group is not who splits the dimension";
  std::vector<int> at(spans.mesh().axes.size(), 0);
  for (std::int64_t n = 0; n < spans.mesh().size(group); ++n) {
    std::int64_t rest = n;
    for (int axis : group) {
      const auto a = static_cast<std::size_t>(axis);
      at[a] = static_cast<int>(rest % spans.mesh().axes[a].size);
      rest /= spans.mesh().axes[a].size;
    }
    const std::int64_t own = spans.at(with.dims[d], at).size();
    if (with.halo.before < 0 || with.halo.after < 0 || own < with.halo.before ||
        own < with.halo.after) {
      return "rows are wanted from beyond the next part";
    }
  }
  return {};
}

std::string apply_collective(const Instr& instr, const Placement& in, const Terms& before,
                             const Placement& out, SpanTable& spans, Terms& terms) {
  const Mesh& mesh = spans.mesh();
  const std::uint32_t mask = instr.group.mask();
  const std::string who = places_text(instr.group, mesh);
  terms = before;
  const bool values = before.size() == 1 && before[0].source == kValueTerm;
  const auto gather = [&]() -> std::string {
    if (std::string f = open_fault(terms, mask, mesh); !f.empty()) return f;
    const std::string f = tiling_fault(out, in, instr.group, spans);
    return f.empty() ? f : fmt::format("{} {}", who, f);
  };
  const auto scatter = [&]() -> std::string {
    if (std::string f = reduce(terms, mask, mesh); !f.empty()) return f;
    if ((in.mask & mask) != 0) return fmt::format("{} add up different regions", who);
    const std::string f = tiling_fault(in, out, instr.group, spans);
    return f.empty() ? f : fmt::format("of the result, {} {}", who, f);
  };
  if (instr.collective == CollectiveKind::kHalo) {
    if (std::string f = open_fault(terms, mask, mesh); !f.empty()) return f;
    return values ? halo_fault(out, in, instr.group, spans)
                  : halo_fault(in, out, instr.group, spans);
  }
  if (in.halo.dim >= 0 || out.halo.dim >= 0) return "rows of neighbours take no part in this";
  switch (instr.collective) {
    case CollectiveKind::kHalo:
      break;
    case CollectiveKind::kAllGather:
      return gather();
    case CollectiveKind::kReduceScatter:
      return scatter();
    case CollectiveKind::kRing:
      return values ? gather() : scatter();
    case CollectiveKind::kAllReduce: {
      if (std::string f = reduce(terms, mask, mesh); !f.empty()) return f;
      if (((in.mask | in.flat.mask()) & mask) != 0) {
        return fmt::format("{} add up different regions", who);
      }
      return same_place(in, out) ? "" : "the result is to lie in another region than the operand";
    }
    case CollectiveKind::kAllToAll: {
      if (std::string f = open_fault(terms, mask, mesh); !f.empty()) return f;
      if (!in.flat.empty() || !out.flat.empty()) return "flat pieces cannot change dimension";
      Placement joined = in;
      for (SpanId& span : joined.dims) {
        span = spans.gather(span, mask);
        if (span == kNoSpan) return fmt::format("{} hold parts that do not join without gaps", who);
      }
      if (std::string f = tiling_fault(joined, in, instr.group, spans); !f.empty()) {
        return fmt::format("{} {}", who, f);
      }
      const std::string f = tiling_fault(joined, out, instr.group, spans);
      return f.empty() ? f : fmt::format("of the result, {} {}", who, f);
    }
    case CollectiveKind::kPermute: {
      if (std::string f = open_fault(terms, mask, mesh); !f.empty()) return f;
      if (!(in.flat == out.flat)) return "flat pieces cannot change dimension";
      if (!in.flat.empty() && in.dims != out.dims) return "flat pieces of another region";
      std::uint32_t used = 0;
      for (std::size_t d = 0; d < in.dims.size(); ++d) {
        const std::uint32_t mine = spans.axes(in.dims[d]) & mask;
        if ((used & mine) != 0 || !spans.covered(out.dims[d], in.dims[d], mask)) {
          return fmt::format("{} do not hold all that is to be taken from them", who);
        }
        used |= mine;
      }
      return {};
    }
    case CollectiveKind::kBroadcast: {
      if (std::string f = open_fault(terms, mask, mesh); !f.empty()) return f;
      if (((in.mask | in.flat.mask()) & mask) != 0 || !same_place(in, out)) {
        return fmt::format("{} hold different regions", who);
      }
      return {};
    }
  }
  return "no such collective";
}

}  // namespace meshwright
