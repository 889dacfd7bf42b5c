#include "mesh/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "mesh/view.h"

namespace meshwright {
namespace {

struct BoxHash {
  std::size_t operator()(const Box& box) const {
    std::uint64_t h = 1469598103934665603ull;
    for (const Interval& i : box) {
      for (std::int64_t v : {i.begin, i.end}) {
        h = (h ^ static_cast<std::uint64_t>(v)) * 1099511628211ull;
        h ^= h >> 29;
      }
    }
    return h;
  }
};

// Senders that hold the same box.
struct Replicas {
  Box box;
  std::vector<std::size_t> senders;  // A heap of indices, least loaded first.
};

class Exchanger {
 public:
  Exchanger(std::span<const Holding> senders, double bytes_per_element)
      : senders_(senders), element_(bytes_per_element), sent_(senders.size()) {
    std::unordered_map<Box, std::size_t, BoxHash> index;
    for (std::size_t s = 0; s < senders.size(); ++s) {
      by_device_.emplace(senders[s].device.value, s);
      if (empty(senders[s].box)) continue;
      const auto [it, fresh] = index.try_emplace(senders[s].box, groups_.size());
      if (fresh) groups_.push_back({senders[s].box, {}});
      groups_[it->second].senders.push_back(s);
    }
    order_groups();
    for (Replicas& g : groups_) {
      std::make_heap(g.senders.begin(), g.senders.end(),
                     [&](auto a, auto b) { return less(b, a); });
    }
  }

  // Calls take(sender, box) for everything that the receiver needs.
  template <typename Take>
  void receive(const Holding& receiver, const Take& take) {
    if (empty(receiver.box)) return;
    double received = 0;
    std::vector<Box> missing = {receiver.box};
    if (const auto own = by_device_.find(receiver.device.value); own != by_device_.end()) {
      if (const auto kept = intersect(receiver.box, senders_[own->second].box)) {
        take(own->second, *kept);
        missing = subtract(receiver.box, *kept);
      }
    }
    std::vector<Box> rest;
    for (std::size_t g = first_candidate(receiver.box); g < groups_.size() && !missing.empty();
         ++g) {
      Replicas& group = groups_[g];
      if (group.box.size() > sorted_ && group.box[sorted_].begin >= receiver.box[sorted_].end) {
        break;
      }
      if (!intersect(group.box, receiver.box)) continue;
      rest.clear();
      double taken = 0;
      std::vector<Box> found;
      for (Box& part : missing) {
        const auto piece = intersect(part, group.box);
        if (!piece) {
          rest.push_back(std::move(part));
          continue;
        }
        for (Box& b : subtract(part, *piece)) rest.push_back(std::move(b));
        taken += volume(*piece) * element_;
        found.push_back(*piece);
      }
      missing.swap(rest);
      if (found.empty()) continue;
      const auto after = [&](auto a, auto b) { return less(b, a); };
      std::pop_heap(group.senders.begin(), group.senders.end(), after);
      const std::size_t sender = group.senders.back();
      sent_[sender] += taken;
      std::push_heap(group.senders.begin(), group.senders.end(), after);
      received += taken;
      for (const Box& b : found) take(sender, b);
    }
    if (!missing.empty()) {
      throw Error(fmt::format("device {} needs {}, but no sender holds {}", receiver.device.value,
                              to_string(receiver.box), to_string(missing.front())));
    }
    most_received_ = std::max(most_received_, received);
    total_ += received;
  }

  Bytes most_sent() const {
    return Bytes(sent_.empty() ? 0 : *std::max_element(sent_.begin(), sent_.end()));
  }
  Bytes most_received() const { return Bytes(most_received_); }
  Bytes total() const { return Bytes(total_); }

 private:
  bool less(std::size_t a, std::size_t b) const {
    return std::pair(sent_[a], senders_[a].device.value) <
           std::pair(sent_[b], senders_[b].device.value);
  }

  // Sorts the groups along the dimension with the most distinct starts, so that a receiver looks
  // only at groups that overlap it there.
  void order_groups() {
    std::size_t most = 0;
    const std::size_t rank = groups_.empty() ? 0 : groups_[0].box.size();
    std::vector<std::int64_t> starts;
    for (std::size_t d = 0; d < rank; ++d) {
      starts.clear();
      for (const Replicas& g : groups_) starts.push_back(g.box[d].begin);
      std::sort(starts.begin(), starts.end());
      const auto distinct =
          static_cast<std::size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
      if (distinct > most) {
        most = distinct;
        sorted_ = d;
      }
    }
    const auto corner = [&](const Replicas& g) { return rank == 0 ? 0 : g.box[sorted_].begin; };
    std::stable_sort(groups_.begin(), groups_.end(),
                     [&](const Replicas& a, const Replicas& b) { return corner(a) < corner(b); });
    std::int64_t reach = 0;
    for (const Replicas& g : groups_) {
      reach = std::max(reach, rank == 0 ? 0 : g.box[sorted_].end);
      reach_.push_back(reach);
    }
  }

  // The first group that may reach into `box`: ends do not decrease in `reach_`.
  std::size_t first_candidate(const Box& box) const {
    if (box.empty()) return 0;
    return static_cast<std::size_t>(
        std::upper_bound(reach_.begin(), reach_.end(), box[sorted_].begin) - reach_.begin());
  }

  std::span<const Holding> senders_;
  double element_;
  std::vector<double> sent_;
  std::unordered_map<std::int32_t, std::size_t> by_device_;
  std::vector<Replicas> groups_;
  std::vector<std::int64_t> reach_;  // Largest end along `sorted_` of the groups up to here.
  std::size_t sorted_ = 0;
  double most_received_ = 0;
  double total_ = 0;
};

std::vector<Holding> holdings(const TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  MW_CHECK(sharding.partial == 0, "an exchange moves whole values, not parts of sums");
  std::vector<Holding> list;
  const int count = mesh.device_count();
  list.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const std::vector<int> coordinates = mesh_coordinates(mesh, i);
    list.push_back({device_at(mesh, coordinates), box_of(type, sharding, mesh, coordinates)});
  }
  return list;
}

}  // namespace

Exchange exchange(std::span<const Holding> senders, std::span<const Holding> receivers,
                  double bytes_per_element) {
  Exchanger exchanger(senders, bytes_per_element);
  Exchange result;
  for (const Holding& r : receivers) {
    exchanger.receive(r, [&](std::size_t sender, const Box& box) {
      result.pieces.push_back({r.device, senders[sender].device, box});
    });
  }
  result.most_sent = exchanger.most_sent();
  result.most_received = exchanger.most_received();
  result.total = exchanger.total();
  return result;
}

Exchange exchange(const TensorType& type, const Sharding& from, const Mesh& from_mesh,
                  const Sharding& to, const Mesh& to_mesh) {
  return exchange(holdings(type, from, from_mesh), holdings(type, to, to_mesh),
                  dtype_bytes(type.dtype));
}

Bytes exchange_bytes(const TensorType& type, const Sharding& from, const Mesh& from_mesh,
                     const Sharding& to, const Mesh& to_mesh) {
  const std::vector<Holding> senders = holdings(type, from, from_mesh);
  Exchanger exchanger(senders, dtype_bytes(type.dtype));
  for (const Holding& r : holdings(type, to, to_mesh)) {
    exchanger.receive(r, [](std::size_t, const Box&) {});
  }
  return std::max(exchanger.most_sent(), exchanger.most_received());
}

}  // namespace meshwright
