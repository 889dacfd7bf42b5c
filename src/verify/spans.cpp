#include "verify/spans.h"

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

std::size_t mix(std::size_t h, std::uint64_t v) {
  h = (h ^ v) * 1099511628211ull;
  return h ^ (h >> 31);
}

}  // namespace

std::size_t SpanTable::EntryHash::operator()(const Entry& entry) const {
  std::size_t h = mix(1469598103934665603ull, entry.mask);
  for (const Interval& i : entry.table) {
    h = mix(mix(h, static_cast<std::uint64_t>(i.begin)), static_cast<std::uint64_t>(i.end));
  }
  return h;
}

std::size_t SpanTable::SplitHash::operator()(const SplitKey& key) const {
  std::size_t h = mix(1469598103934665603ull, static_cast<std::uint64_t>(key.size));
  h = mix(h, static_cast<std::uint64_t>(key.unit));
  for (int a : key.axes) h = mix(h, static_cast<std::uint64_t>(a) + 1);
  return h;
}

std::int64_t SpanTable::table_size(std::uint32_t mask) const {
  std::int64_t size = 1;
  for (std::size_t a = 0; a < mesh_.axes.size(); ++a) {
    if (mask >> a & 1u) size *= mesh_.axes[a].size;
  }
  return size;
}

std::size_t SpanTable::index(const Entry& e, std::span<const int> coordinates) const {
  std::size_t i = 0, stride = 1;
  for (std::size_t a = 0; a < mesh_.axes.size(); ++a) {
    if ((e.mask >> a & 1u) == 0) continue;
    i += static_cast<std::size_t>(coordinates[a]) * stride;
    stride *= static_cast<std::size_t>(mesh_.axes[a].size);
  }
  return i;
}

template <typename Visit>
void SpanTable::for_each(std::uint32_t mask, const Visit& visit) {
  coordinates_.assign(mesh_.axes.size(), 0);
  const std::int64_t count = table_size(mask);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    for (std::size_t a = 0; a < mesh_.axes.size(); ++a) {
      if ((mask >> a & 1u) == 0) continue;
      coordinates_[a] = static_cast<int>(rest % mesh_.axes[a].size);
      rest /= mesh_.axes[a].size;
    }
    visit(static_cast<std::size_t>(i));
  }
}

// Drops the axes on which the table does not depend, so that equal functions have equal entries.
SpanId SpanTable::intern(Entry e) {
  for (Interval& i : e.table) {
    if (i.empty()) i = {};
  }
  std::size_t stride = 1;
  for (std::size_t a = 0; a < mesh_.axes.size(); ++a) {
    if ((e.mask >> a & 1u) == 0) continue;
    const auto size = static_cast<std::size_t>(mesh_.axes[a].size);
    bool depends = false;
    for (std::size_t i = 0; i < e.table.size() && !depends; ++i) {
      depends = e.table[i] != e.table[i - i / stride % size * stride];
    }
    if (depends) {
      stride *= size;
      continue;
    }
    std::vector<Interval> smaller;
    for (std::size_t i = 0; i < e.table.size(); ++i) {
      if (i / stride % size == 0) smaller.push_back(e.table[i]);
    }
    e.table = std::move(smaller);
    e.mask &= ~(1u << a);
  }
  const auto [it, fresh] = ids_.try_emplace(std::move(e), static_cast<SpanId>(entries_.size()));
  if (fresh) entries_.push_back(&it->first);
  return it->second;
}

SpanId SpanTable::split(std::int64_t size, std::int64_t unit, const AxisList& axes) {
  const auto [it, fresh] = splits_.try_emplace({size, unit, axes}, kNoSpan);
  if (!fresh) return it->second;
  Entry e;
  e.mask = axes.mask();
  e.table.resize(static_cast<std::size_t>(table_size(e.mask)));
  for_each(e.mask, [&](std::size_t i) {
    Interval interval{0, size};
    for (int axis : axes) {
      const auto a = static_cast<std::size_t>(axis);
      interval = split_interval(interval, unit, mesh_.axes[a].size, coordinates_[a]);
    }
    e.table[i] = interval;
  });
  return it->second = intern(std::move(e));
}

Interval SpanTable::at(SpanId id, std::span<const int> coordinates) const {
  const Entry& e = entry(id);
  return e.table[index(e, coordinates)];
}

SpanId SpanTable::gather(SpanId id, std::uint32_t mask) {
  mask &= axes(id);
  if (mask == 0) return id;
  const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(id)} << 32 | mask;
  if (const auto it = gathers_.find(key); it != gathers_.end()) return it->second;
  const Entry source = entry(id);
  Entry e;
  e.mask = source.mask & ~mask;
  std::vector<std::vector<Interval>> members(static_cast<std::size_t>(table_size(e.mask)));
  for_each(source.mask, [&](std::size_t i) {
    if (!source.table[i].empty()) members[index(e, coordinates_)].push_back(source.table[i]);
  });
  bool tiles = true;
  for (std::vector<Interval>& list : members) {
    std::sort(list.begin(), list.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < list.size(); ++i) tiles &= list[i - 1].end == list[i].begin;
    e.table.push_back(list.empty() ? Interval{} : Interval{list.front().begin, list.back().end});
  }
  return gathers_[key] = tiles ? intern(std::move(e)) : kNoSpan;
}

bool SpanTable::covered(SpanId inner, SpanId outer, std::uint32_t mask) {
  mask &= axes(outer);
  // Per device up to `mask`: the union of the others' intervals.
  const Entry source = entry(outer);
  Entry rest;
  rest.mask = source.mask & ~mask;
  std::vector<std::vector<Interval>> members(static_cast<std::size_t>(table_size(rest.mask)));
  for_each(source.mask, [&](std::size_t i) {
    if (!source.table[i].empty()) members[index(rest, coordinates_)].push_back(source.table[i]);
  });
  for (std::vector<Interval>& list : members) {
    std::sort(list.begin(), list.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    std::size_t last = 0;
    for (std::size_t i = 1; i < list.size(); ++i) {
      if (list[i].begin <= list[last].end) {
        list[last].end = std::max(list[last].end, list[i].end);
      } else {
        list[++last] = list[i];
      }
    }
    if (!list.empty()) list.resize(last + 1);
  }
  bool inside = true;
  for_each(axes(inner) | rest.mask, [&](std::size_t) {
    const Interval i = at(inner, coordinates_);
    const auto& list = members[index(rest, coordinates_)];
    inside &= i.empty() || std::any_of(list.begin(), list.end(), [&](const Interval& o) {
                return i.begin >= o.begin && i.end <= o.end;
              });
  });
  return inside;
}

bool SpanTable::within(SpanId inner, SpanId outer) {
  if (inner == outer) return true;
  bool inside = true;
  for_each(axes(inner) | axes(outer), [&](std::size_t) {
    const Interval i = at(inner, coordinates_);
    const Interval o = at(outer, coordinates_);
    inside &= i.empty() || (i.begin >= o.begin && i.end <= o.end);
  });
  return inside;
}

bool SpanTable::proportional(SpanId id, std::int64_t size, SpanId scaled,
                             std::int64_t scaled_size) const {
  const Entry& a = entry(id);
  const Entry& b = entry(scaled);
  if (a.mask != b.mask) return false;
  for (std::size_t i = 0; i < a.table.size(); ++i) {
    using Wide = __int128;
    if (Wide{a.table[i].begin} * scaled_size != Wide{b.table[i].begin} * size ||
        Wide{a.table[i].end} * scaled_size != Wide{b.table[i].end} * size) {
      return false;
    }
  }
  return true;
}

bool SpanTable::factor(SpanId id, std::span<const std::int64_t> sizes, std::span<SpanId> factors) {
  if (sizes.size() == 1) {
    factors[0] = id;
    return true;
  }
  const Entry source = entry(id);
  std::vector<Entry> parts(sizes.size(), {source.mask, {}});
  for (const Interval& whole : source.table) {
    Interval interval = whole;
    bool cut = true;  // Until the interval is found to be a run of whole rows.
    for (std::size_t f = 0; f < sizes.size(); ++f) {
      std::int64_t inner = 1;
      for (std::size_t g = f + 1; g < sizes.size(); ++g) inner *= sizes[g];
      if (!cut) {
        parts[f].table.push_back({0, sizes[f]});
      } else if (interval.begin % inner == 0 && interval.end % inner == 0) {
        parts[f].table.push_back({interval.begin / inner, interval.end / inner});
        cut = false;
      } else {
        const std::int64_t row = interval.begin / inner;
        if ((interval.end - 1) / inner != row) return false;
        parts[f].table.push_back({row, row + 1});
        interval = {interval.begin - row * inner, interval.end - row * inner};
      }
    }
  }
  for (std::size_t f = 0; f < sizes.size(); ++f) factors[f] = intern(std::move(parts[f]));
  return true;
}

std::vector<int> SpanTable::first_difference(SpanId a, SpanId b) const {
  const std::int64_t count = mesh_.device_count();
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<int> coordinates = mesh_coordinates(mesh_, i);
    if (at(a, coordinates) != at(b, coordinates)) return coordinates;
  }
  return std::vector<int>(mesh_.axes.size(), 0);
}

}  // namespace meshwright
