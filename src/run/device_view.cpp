#include "run/device_view.h"

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

Interval cut(const Interval& a, const Interval& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Nothing when they share no element.
std::optional<Box> cut(const Box& a, const Box& b) {
  Box box;
  for (std::size_t d = 0; d < a.size(); ++d) {
    box.push_back(cut(a[d], b[d]));
    if (box.back().empty()) return std::nullopt;
  }
  return box;
}

Box relative(Box box, const Box& origin) {
  for (std::size_t d = 0; d < box.size(); ++d) {
    box[d].begin -= origin[d].begin;
    box[d].end -= origin[d].begin;
  }
  return box;
}

// Regions of one collective: all flat within one box, or all boxes.
Box region_of(const LocalBuffer& b, bool flat) {
  if (!flat) return b.box;
  if (b.flat) return {{b.begin, b.end}};
  return {{0, element_count(b.box)}};
}

std::vector<LocalPiece> pieces_between(const Box& source, const Box& target, int peer) {
  const auto shared = cut(source, target);
  if (!shared) return {};
  return {{peer, relative(*shared, source), relative(*shared, target)}};
}

}  // namespace

std::vector<std::int64_t> LocalBuffer::shape() const {
  if (flat) return {end - begin};
  return sizes_of(box);
}

std::int64_t element_count(const Box& box) {
  std::int64_t count = 1;
  for (const Interval& i : box) count *= i.empty() ? 0 : i.size();
  return count;
}

LocalBuffer local_buffer(const TensorType& type, const Buffer& buffer, const Mesh& mesh,
                         std::span<const int> coordinates) {
  LocalBuffer local;
  local.box = box_of(type, buffer.form, mesh, coordinates);
  // Of empty parts only the size counts.
  if (element_count(local.box) == 0) {
    for (Interval& i : local.box) {
      if (i.empty()) i = {i.begin, i.begin};
    }
  }
  local.core = local.box;
  if (buffer.halo.dim >= 0) {
    const auto d = static_cast<std::size_t>(buffer.halo.dim);
    Interval& rows = local.box[d];
    if (!rows.empty()) {
      rows.begin = std::max<std::int64_t>(rows.begin - buffer.halo.before, 0);
      rows.end = std::min(rows.end + buffer.halo.after, type.dims[d].size);
    }
  }
  local.flat = !buffer.flat.empty();
  if (local.flat) {
    std::int64_t index = 0, pieces = 1;
    for (int axis : buffer.flat) {
      const auto a = static_cast<std::size_t>(axis);
      index = index * mesh.axes[a].size + coordinates[a];
      pieces *= mesh.axes[a].size;
    }
    const std::int64_t count = element_count(local.box);
    const std::int64_t each = (count + pieces - 1) / pieces;
    local.begin = std::min(count, index * each);
    local.end = std::min(count, (index + 1) * each);
  }
  return local;
}

std::optional<std::vector<int>> coordinates_of(const Mesh& mesh, DeviceId device) {
  for (int i = 0; i < mesh.device_count(); ++i) {
    std::vector<int> coordinates = mesh_coordinates(mesh, i);
    if (device_at(mesh, coordinates) == device) return coordinates;
  }
  return std::nullopt;
}

std::vector<std::vector<int>> group_of(const Mesh& mesh, std::span<const int> coordinates,
                                       std::uint32_t axes) {
  std::vector<std::vector<int>> members;
  for (int i = 0; i < mesh.device_count(); ++i) {
    std::vector<int> other = mesh_coordinates(mesh, i);
    bool same = true;
    for (std::size_t a = 0; a < other.size(); ++a) {
      same &= (axes >> a & 1u) != 0 || other[a] == coordinates[a];
    }
    if (same) members.push_back(std::move(other));
  }
  return members;
}

bool is_owner(const Buffer& buffer, const Mesh& mesh, std::span<const int> coordinates) {
  std::uint32_t used = buffer.form.partial | buffer.flat.mask();
  for (std::size_t d = 0; d < buffer.form.rank; ++d) used |= buffer.form.dims[d].mask();
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
    if ((used >> a & 1u) == 0 && coordinates[a] != 0) return false;
  }
  return true;
}

LocalCollective local_collective(const Instr& instr, bool gradient, const TensorType& type,
                                 const Buffer& in, const Buffer& out, const Mesh& mesh,
                                 std::span<const int> coordinates) {
  LocalCollective local;
  std::vector<Box> before, after, cores;
  const bool flat = !in.flat.empty() || !out.flat.empty();
  const std::vector<int> mine(coordinates.begin(), coordinates.end());
  for (const std::vector<int>& other : group_of(mesh, coordinates, instr.group.mask())) {
    if (other == mine) local.me = local.ranks.size();
    local.ranks.push_back(device_at(mesh, other).value);
    const LocalBuffer a = local_buffer(type, in, mesh, other);
    const LocalBuffer b = local_buffer(type, out, mesh, other);
    if (flat && a.box != b.box) {
      throw InternalError("a collective changes a tensor's box and its state shard at once");
    }
    before.push_back(region_of(a, flat));
    cores.push_back(flat ? before.back() : a.core);
    after.push_back(region_of(b, flat));
  }
  LocalExchange& e = local.exchange;
  e.flat = flat;
  const std::size_t me = local.me;
  const int count = static_cast<int>(local.ranks.size());
  const CollectiveKind kind = instr.collective;
  const bool ring = kind == CollectiveKind::kRing;
  if (kind == CollectiveKind::kAllReduce) {
    local.way = ExchangeWay::kAllReduce;
    e.sums = true;
    e.keep = pieces_between(before[me], after[me], 0);
    return local;
  }
  if (kind == CollectiveKind::kReduceScatter || (ring && gradient)) {
    local.way = ExchangeWay::kReduceScatter;
    e.sums = true;
    for (int m = 0; m < count; ++m) {
      const auto shared = cut(before[me], after[static_cast<std::size_t>(m)]);
      e.shares.push_back(shared ? relative(*shared, before[me]) : Box(before[me].size()));
    }
    return local;
  }
  if (kind == CollectiveKind::kAllGather || ring) {
    // Whole operands go around; where they lie in this device's result.
    bool all = true;
    for (int m = 0; m < count; ++m) {
      const auto i = static_cast<std::size_t>(m);
      const auto shared = cut(before[i], after[me]);
      all &= element_count(before[i]) == 0 || (shared && *shared == before[i]);
      e.shares.push_back(shared ? relative(*shared, after[me]) : Box(after[me].size()));
    }
    if (all) {
      local.way = ExchangeWay::kAllGather;
      for (const Box& b : before) e.blocks.push_back(relative(b, b));
      return local;
    }
    e.shares.clear();
  }
  local.way = ExchangeWay::kPieces;
  e.sums = gradient && kind == CollectiveKind::kHalo;
  if (e.sums) {
    for (int m = 0; m < count; ++m) {
      const auto i = static_cast<std::size_t>(m);
      const auto out_pieces = pieces_between(before[me], after[i], m);
      const auto in_pieces = pieces_between(before[i], after[me], m);
      if (i == me) {
        e.keep = out_pieces;
        continue;
      }
      e.give.insert(e.give.end(), out_pieces.begin(), out_pieces.end());
      e.take.insert(e.take.end(), in_pieces.begin(), in_pieces.end());
    }
    return local;
  }
  std::vector<Holding> senders, receivers;
  for (int m = 0; m < count; ++m) {
    const auto i = static_cast<std::size_t>(m);
    if (kind != CollectiveKind::kBroadcast || m == 0) {
      if (element_count(before[i]) > 0) senders.push_back({DeviceId(m), cores[i]});
    }
    if (element_count(after[i]) > 0) receivers.push_back({DeviceId(m), after[i]});
  }
  for (const ExchangePiece& p : exchange(senders, receivers, 1).pieces) {
    const auto from = static_cast<std::size_t>(p.sender.value);
    const auto to = static_cast<std::size_t>(p.receiver.value);
    const LocalPiece piece{static_cast<int>(from == me ? to : from), relative(p.box, before[from]),
                           relative(p.box, after[to])};
    if (from == me && to == me) {
      e.keep.push_back(piece);
    } else if (from == me) {
      e.give.push_back(piece);
    } else if (to == me) {
      e.take.push_back(piece);
    }
  }
  return local;
}

LocalTransfer local_transfer(const TensorType& type, const Transfer::Item& item, bool aligned,
                             const Mesh& from, const Mesh& to, DeviceId device) {
  LocalTransfer local;
  const Buffer sent{item.value, BufferKind::kValue, item.from, {}, {}};
  const Buffer received{item.value, BufferKind::kValue, item.to, {}, {}};
  const auto at_from = coordinates_of(from, device);
  const auto at_to = coordinates_of(to, device);
  if (at_from) local.from = local_buffer(type, sent, from, *at_from);
  if (at_to) local.to = local_buffer(type, received, to, *at_to);
  const auto add = [&](int sender, int receiver, const Box& box, const Box& held,
                       const Box& wanted) {
    const LocalPiece piece{sender == device.value ? receiver : sender, relative(box, held),
                           relative(box, wanted)};
    if (sender == device.value && receiver == device.value) {
      local.keep.push_back(piece);
    } else if (sender == device.value) {
      local.give.push_back(piece);
    } else if (receiver == device.value) {
      local.take.push_back(piece);
    }
  };
  if (aligned) {
    if (at_from) {
      const int receiver = device_at(to, *at_from).value;
      if (element_count(local.from->box) > 0) {
        add(device.value, receiver, local.from->box, local.from->box, local.from->box);
      }
    }
    if (at_to) {
      const int sender = device_at(from, *at_to).value;
      if (sender != device.value && element_count(local.to->box) > 0) {
        add(sender, device.value, local.to->box, local.to->box, local.to->box);
      }
    }
    return local;
  }
  for (const ExchangePiece& p : exchange(type, item.from, from, item.to, to).pieces) {
    if (p.sender != device && p.receiver != device) continue;
    const auto s = coordinates_of(from, p.sender);
    const auto r = coordinates_of(to, p.receiver);
    add(p.sender.value, p.receiver.value, p.box, local_buffer(type, sent, from, *s).box,
        local_buffer(type, received, to, *r).box);
  }
  return local;
}

}  // namespace meshwright
