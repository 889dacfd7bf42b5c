#include "mesh/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::int64_t kMaxParts = std::int64_t{1} << 53;

// The interval that a part takes when the whole value is cut into `fineness` parts.
Interval part_interval(const ValuePart& part, std::int64_t fineness) {
  const std::int64_t width = fineness / part.parts;
  return {part.index * width, (part.index + 1) * width};
}

std::int64_t joint_fineness(std::int64_t a, std::int64_t b) {
  const std::int64_t factor = b / std::gcd(a, b);
  if (a > kMaxParts / factor) {
    throw Error(fmt::format("value parts 1/{} and 1/{} have no common fineness below 2^53", a, b));
  }
  return a * factor;
}

Interval intersect(const Interval& a, const Interval& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Boxes whose last dimension is the value part, swept dimension by dimension: between two
// neighbouring bounds of dimension d the same boxes are there, so each slab is one problem in the
// dimensions after d.
class CoverSweep {
 public:
  explicit CoverSweep(std::vector<Box> boxes) : boxes_(std::move(boxes)) {}

  // The faulty region within `region` (dimensions before d already narrowed), and its count.
  std::optional<std::pair<Box, int>> run(Box region) {
    std::vector<int> all;
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      if (!empty(boxes_[i])) all.push_back(static_cast<int>(i));
    }
    if (empty(region)) return std::nullopt;
    return sweep(region, 0, all);
  }

 private:
  std::optional<std::pair<Box, int>> sweep(Box& region, std::size_t d, std::vector<int>& active) {
    if (d == region.size()) {
      if (active.size() == 1) return std::nullopt;
      return std::pair{region, static_cast<int>(active.size())};
    }
    const Interval whole = region[d];
    std::sort(active.begin(), active.end(), [&](int a, int b) {
      return std::pair(at(a, d).begin, a) < std::pair(at(b, d).begin, b);
    });
    std::vector<int> here;
    std::size_t next = 0;
    std::int64_t position = whole.begin;
    while (position < whole.end) {
      std::erase_if(here, [&](int i) { return at(i, d).end <= position; });
      while (next < active.size() && at(active[next], d).begin <= position) {
        // Some end before the region begins.
        if (at(active[next], d).end > position) here.push_back(active[next]);
        ++next;
      }
      std::int64_t end = whole.end;
      for (int i : here) end = std::min(end, at(i, d).end);
      if (next < active.size()) end = std::min(end, at(active[next], d).begin);
      region[d] = {position, end};
      std::vector<int> inside = here;
      if (auto fault = sweep(region, d + 1, inside)) return fault;
      position = end;
    }
    region[d] = whole;
    return std::nullopt;
  }

  const Interval& at(int box, std::size_t d) const {
    return boxes_[static_cast<std::size_t>(box)][d];
  }

  std::vector<Box> boxes_;
};

}  // namespace

View whole_view(const TensorType& type) {
  View view;
  for (const Dim& dim : type.dims) view.box.push_back({0, dim.size});
  return view;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.size(); ++d) {
    text += fmt::format("{}{}:{}", d > 0 ? ", " : "", box[d].begin, box[d].end);
  }
  return text + "]";
}

std::string to_string(const View& view) {
  std::string text = to_string(view.box);
  if (!view.part.whole()) {
    text += fmt::format(" part {} of {}", view.part.index + 1, view.part.parts);
  }
  return text;
}

bool empty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Interval& i) { return i.empty(); });
}

double volume(const Box& box) {
  double elements = 1;
  for (const Interval& i : box) elements *= i.empty() ? 0.0 : static_cast<double>(i.size());
  return elements;
}

bool contains(const Box& outer, const Box& inner) {
  MW_CHECK(outer.size() == inner.size(), "boxes of different rank");
  if (empty(inner)) return true;
  for (std::size_t d = 0; d < outer.size(); ++d) {
    if (inner[d].begin < outer[d].begin || inner[d].end > outer[d].end) return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  MW_CHECK(a.size() == b.size(), "boxes of different rank");
  Box box(a.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    box[d] = intersect(a[d], b[d]);
    if (box[d].empty()) return std::nullopt;
  }
  return box;
}

std::vector<Box> subtract(const Box& box, const Box& hole) {
  std::vector<Box> before, after;
  Box rest = box;  // What is not yet handed out; shrinks to the hole.
  for (std::size_t d = 0; d < box.size(); ++d) {
    if (rest[d].begin < hole[d].begin) {
      before.push_back(rest);
      before.back()[d].end = hole[d].begin;
    }
    if (hole[d].end < rest[d].end) {
      after.push_back(rest);
      after.back()[d].begin = hole[d].end;
    }
    rest[d] = hole[d];
  }
  before.insert(before.end(), after.rbegin(), after.rend());
  return before;
}

View compose(const View& outer, const View& inner) {
  if (outer.box.size() != inner.box.size()) {
    throw Error(
        fmt::format("a view of rank {} within one of rank {}", inner.box.size(), outer.box.size()));
  }
  View view = outer;
  for (std::size_t d = 0; d < view.box.size(); ++d) {
    const Interval& o = outer.box[d];
    const Interval& i = inner.box[d];
    if (i.begin < 0 || i.end > o.size() || i.end < i.begin) {
      throw Error(fmt::format("view {} does not fit into {}", to_string(inner), to_string(outer)));
    }
    view.box[d] = {o.begin + i.begin, o.begin + i.end};
  }
  if (inner.part.parts > kMaxParts / outer.part.parts) {
    throw Error(
        fmt::format("{} parts of {} parts exceed 2^53", inner.part.parts, outer.part.parts));
  }
  view.part = {outer.part.index * inner.part.parts + inner.part.index,
               outer.part.parts * inner.part.parts};
  return view;
}

std::optional<View> intersect(const View& a, const View& b) {
  const auto box = intersect(a.box, b.box);
  if (!box) return std::nullopt;
  const std::int64_t fineness = joint_fineness(a.part.parts, b.part.parts);
  const Interval pa = part_interval(a.part, fineness);
  const Interval pb = part_interval(b.part, fineness);
  const Interval both = intersect(pa, pb);
  if (both.empty()) return std::nullopt;
  if (both == pa) return View{*box, a.part};
  if (both == pb) return View{*box, b.part};
  throw Error(fmt::format("part {} of {} and part {} of {} overlap, but neither lies in the other",
                          a.part.index + 1, a.part.parts, b.part.index + 1, b.part.parts));
}

std::optional<CoverFault> find_cover_fault(const View& target, std::span<const View> views) {
  std::int64_t fineness = target.part.parts;
  for (const View& v : views) fineness = joint_fineness(fineness, v.part.parts);
  const auto with_part = [&](const View& v) {
    Box box = v.box;
    box.push_back(part_interval(v.part, fineness));
    return box;
  };
  std::vector<Box> boxes;
  boxes.reserve(views.size());
  for (const View& v : views) {
    MW_CHECK(v.box.size() == target.box.size(), "views of different rank");
    boxes.push_back(with_part(v));
  }
  auto fault = CoverSweep(std::move(boxes)).run(with_part(target));
  if (!fault) return std::nullopt;
  auto& [box, times] = *fault;
  const Interval part = box.back();
  box.pop_back();
  // Cuts of the value lie on parts, whose widths need not divide their positions: widest that do.
  const std::int64_t width = std::gcd(std::gcd(part.begin, part.size()), fineness);
  return CoverFault{{std::move(box), {part.begin / width, fineness / width}}, times};
}

bool covers_once(const View& target, std::span<const View> views) {
  return !find_cover_fault(target, views);
}

}  // namespace meshwright
