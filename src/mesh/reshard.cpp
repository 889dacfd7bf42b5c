// Resharding on one mesh. Legal steps, as nnScaler's RVD transitions (Lin et al. 2024, section 4)
// but per mesh axis and with the order of the axes that split a dimension, of which only the
// innermost can be gathered or moved: slice (replicated -> innermost of a dimension), all_gather
// (innermost -> replicated), all_to_all (innermost -> innermost elsewhere), reduce_scatter (partial
// -> innermost), all_reduce (partial -> replicated), and permute (anything that leaves sums alone,
// by general point-to-point).
//
// Most reshards are one collective, found directly in O(axes * rank). Where that way takes two or
// more, Dijkstra's algorithm over shardings looks for fewer bytes: at most (rank+2)^axes states of
// those axes that move.
#include <algorithm>
#include <map>
#include <queue>

#include "base/error.h"
#include "mesh/sharding.h"

namespace meshwright {
namespace {

bool is_prefix(const AxisList& a, const AxisList& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

AxisList without_last(const AxisList& list) {
  AxisList shorter;
  for (int i = 0; i + 1 < list.size(); ++i) shorter.push_back(list[i]);
  return shorter;
}

std::uint32_t split_mask(const Sharding& s) {
  std::uint32_t mask = 0;
  for (int d = 0; d < s.rank; ++d) mask |= s.dims[static_cast<std::size_t>(d)].mask();
  return mask;
}

double parts(const Mesh& mesh, const AxisList& axes) { return mesh.size(axes); }

double traffic(const ReshardStep& step, const Mesh& mesh) {
  if (step.local) return 0;
  const double n = parts(mesh, step.axes);
  const double share = step.bytes.value * (n - 1) / n;
  return step.kind == CollectiveKind::kAllReduce ? 2 * share : share;
}

class Resharder {
 public:
  Resharder(const TensorType& type, const Sharding& to, const Mesh& mesh)
      : type_(type), to_(to), mesh_(mesh) {}

  std::vector<ReshardStep> direct(Sharding at);
  std::vector<ReshardStep> shortest(const Sharding& from);

 private:
  Bytes bytes(const Sharding& s) const { return local_bytes(type_, s, mesh_); }
  bool partial(const Sharding& s, int axis) const { return (s.partial >> axis & 1u) != 0; }
  // The axis that the target has next in dimension d, or -1 when the dimension is not on its way.
  int next_axis(const Sharding& at, std::size_t d) const {
    const AxisList& have = at.dims[d];
    const AxisList& want = to_.dims[d];
    return is_prefix(have, want) && have.size() < want.size() ? want[have.size()] : -1;
  }
  ReshardStep finish(CollectiveKind kind, const AxisList& axes, const Sharding& before,
                     const Sharding& after) const {
    const bool gathers = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kPermute;
    return {kind, axes, bytes(gathers ? after : before), after, false};
  }

  const TensorType& type_;
  const Sharding& to_;
  const Mesh& mesh_;
};

// Slices, then reduce_scatter, all_to_all, all_reduce, all_gather, each over all axes that it can
// move: fewest bytes first. Empty when stuck.
std::vector<ReshardStep> Resharder::direct(Sharding at) {
  std::vector<ReshardStep> steps;
  const auto rank = static_cast<std::size_t>(at.rank);
  for (int round = 0; round < 4 * AxisList::kCapacity && !(at == to_); ++round) {
    Sharding next = at;
    // Slice.
    for (std::size_t d = 0; d < rank; ++d) {
      for (int axis = next_axis(next, d);
           axis >= 0 && !((split_mask(next) | next.partial) >> axis & 1u);
           axis = next_axis(next, d)) {
        next.dims[d].push_back(axis);
      }
    }
    if (!(next == at)) {
      steps.push_back({CollectiveKind::kAllGather, {}, Bytes(0), next, true});
      at = next;
      continue;
    }
    AxisList axes;
    for (std::size_t d = 0; d < rank; ++d) {
      for (int axis = next_axis(next, d); axis >= 0 && partial(next, axis);
           axis = next_axis(next, d)) {
        next.dims[d].push_back(axis);
        next.partial &= ~(1u << axis);
        axes.push_back(axis);
      }
    }
    if (!axes.empty()) {
      steps.push_back(finish(CollectiveKind::kReduceScatter, axes, at, next));
      at = next;
      continue;
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t d = 0; d < rank && !moved; ++d) {
        const int axis = next_axis(next, d);
        if (axis < 0) continue;
        for (std::size_t e = 0; e < rank && !moved; ++e) {
          const AxisList& list = next.dims[e];
          if (e == d || list.empty() || list[list.size() - 1] != axis) continue;
          next.dims[e] = without_last(list);
          next.dims[d].push_back(axis);
          axes.push_back(axis);
          moved = true;
        }
      }
    }
    if (!axes.empty()) {
      steps.push_back(finish(CollectiveKind::kAllToAll, axes, at, next));
      at = next;
      continue;
    }
    if (const std::uint32_t sum = next.partial & ~to_.partial & ~split_mask(to_); sum != 0) {
      next.partial &= ~sum;
      steps.push_back(finish(CollectiveKind::kAllReduce, axes_of_mask(sum), at, next));
      at = next;
      continue;
    }
    const std::uint32_t wanted = split_mask(to_);
    for (std::size_t d = 0; d < rank; ++d) {
      while (!is_prefix(next.dims[d], to_.dims[d])) {
        const int axis = next.dims[d][next.dims[d].size() - 1];
        if (wanted >> axis & 1u) break;
        next.dims[d] = without_last(next.dims[d]);
        axes.push_back(axis);
      }
    }
    if (axes.empty()) return {};
    steps.push_back(finish(CollectiveKind::kAllGather, axes, at, next));
    at = next;
  }
  return at == to_ ? steps : std::vector<ReshardStep>{};
}

struct ByContent {
  bool operator()(const Sharding& a, const Sharding& b) const {
    if (a.partial != b.partial) return a.partial < b.partial;
    for (int d = 0; d < a.rank; ++d) {
      const AxisList& x = a.dims[static_cast<std::size_t>(d)];
      const AxisList& y = b.dims[static_cast<std::size_t>(d)];
      if (!(x == y)) {
        return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
      }
    }
    return false;
  }
};

std::vector<ReshardStep> Resharder::shortest(const Sharding& from) {
  constexpr std::size_t kMaxStates = 4096;
  // Among equally cheap ways the one with fewer steps: a message costs as much as this many bytes.
  constexpr double kHop = 1;
  struct Known {
    double cost = 0;
    Sharding before;
    ReshardStep step;
    bool done = false;
  };
  std::map<Sharding, Known, ByContent> known;
  using Entry = std::pair<double, Sharding>;
  const auto later = [](const Entry& a, const Entry& b) { return a.first > b.first; };
  std::priority_queue<Entry, std::vector<Entry>, decltype(later)> queue(later);
  known[from] = {0, from, {}, false};
  queue.emplace(0, from);
  const auto rank = static_cast<std::size_t>(from.rank);
  const std::uint32_t target_split = split_mask(to_);
  const int axes = static_cast<int>(mesh_.axes.size());

  while (!queue.empty()) {
    const auto [cost, at] = queue.top();
    queue.pop();
    Known& here = known[at];
    if (here.done) continue;
    here.done = true;
    if (at == to_) break;
    const auto reach = [&, before = at, base = cost](const ReshardStep& step) {
      const double total = base + traffic(step, mesh_) + (step.local ? 0 : kHop);
      const auto [it, fresh] = known.try_emplace(step.to, Known{total, before, step, false});
      if (!fresh && (it->second.done || it->second.cost <= total)) return;
      it->second = {total, before, step, false};
      queue.emplace(total, step.to);
    };
    // Anything with the same sums due, by point-to-point.
    if (at.partial == to_.partial) {
      AxisList moved = axes_of_mask(split_mask(at) | target_split);
      reach({CollectiveKind::kPermute, moved, bytes(to_), to_, false});
    }
    if (known.size() > kMaxStates) continue;
    const std::uint32_t used = split_mask(at) | at.partial;
    for (int axis = 0; axis < axes; ++axis) {
      const bool sum_due = partial(at, axis);
      if (sum_due && partial(to_, axis)) continue;
      if (sum_due) {
        Sharding next = at;
        next.partial &= ~(1u << axis);
        reach(finish(CollectiveKind::kAllReduce, {axis}, at, next));
      }
      for (std::size_t d = 0; d < rank; ++d) {
        if (at.dims[d].size() == AxisList::kCapacity) continue;
        Sharding next = at;
        next.dims[d].push_back(axis);
        next.partial &= ~(1u << axis);
        if (sum_due) {
          reach(finish(CollectiveKind::kReduceScatter, {axis}, at, next));
        } else if (!(used >> axis & 1u) && (target_split >> axis & 1u)) {
          reach({CollectiveKind::kAllGather, {}, Bytes(0), next, true});
        }
      }
    }
    for (std::size_t d = 0; d < rank; ++d) {
      if (at.dims[d].empty() || at.dims[d] == to_.dims[d]) continue;
      const int axis = at.dims[d][at.dims[d].size() - 1];
      Sharding gathered = at;
      gathered.dims[d] = without_last(at.dims[d]);
      reach(finish(CollectiveKind::kAllGather, {axis}, at, gathered));
      for (std::size_t e = 0; e < rank; ++e) {
        if (e == d || at.dims[e].size() == AxisList::kCapacity) continue;
        Sharding next = gathered;
        next.dims[e].push_back(axis);
        reach(finish(CollectiveKind::kAllToAll, {axis}, at, next));
      }
    }
  }
  const auto end = known.find(to_);
  if (end == known.end()) throw InternalError("reshard: a sum would have to come from nowhere");
  std::vector<ReshardStep> steps;
  for (Sharding at = to_; !(at == from);) {
    const Known& k = known[at];
    steps.push_back(k.step);
    at = k.before;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace

double reshard_traffic(const std::vector<ReshardStep>& steps, const Mesh& mesh) {
  double sum = 0;
  for (const ReshardStep& step : steps) sum += traffic(step, mesh);
  return sum;
}

std::vector<ReshardStep> ReshardCache::reshard(const TensorType& type, const Sharding& from,
                                               const Sharding& to, const Mesh& mesh) {
  MW_CHECK(from.rank == to.rank, "reshard between ranks");
  if (from == to) return {};
  Resharder resharder(type, to, mesh);
  std::vector<ReshardStep> direct = resharder.direct(from);
  const auto sends = std::count_if(direct.begin(), direct.end(),
                                   [](const ReshardStep& step) { return !step.local; });
  // What is sliced after it was sent need not have been sent.
  if (!direct.empty() && sends <= 1 && (sends == 0 || !direct.back().local)) return direct;
  std::vector<std::int64_t> key = {dtype_bytes(type.dtype), from.partial, to.partial};
  for (const Dim& dim : type.dims) key.push_back(dim.size), key.push_back(dim.unit);
  for (const MeshAxis& axis : mesh.axes) key.push_back(-axis.size);
  for (const Sharding* s : {&from, &to}) {
    for (int d = 0; d < s->rank; ++d) {
      for (int axis : s->dims[static_cast<std::size_t>(d)]) key.push_back(axis);
      key.push_back(-1);
    }
  }
  const auto [it, fresh] = found_.try_emplace(std::move(key));
  if (fresh) {
    std::vector<ReshardStep> shortest = resharder.shortest(from);
    // Single-axis steps of the search merge in the direct way: keep that one unless it sends more.
    const bool as_good = !direct.empty() && reshard_traffic(direct, mesh) <=
                                                reshard_traffic(shortest, mesh) * (1 + 1e-9);
    it->second = std::move(as_good ? direct : shortest);
  }
  return it->second;
}

std::vector<ReshardStep> reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                                 const Mesh& mesh) {
  return ReshardCache().reshard(type, from, to, mesh);
}

}  // namespace meshwright
