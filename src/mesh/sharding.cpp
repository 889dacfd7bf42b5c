#include "mesh/sharding.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr int kReplicated = -1;
constexpr int kPartial = -2;

// Where an axis acts: a dimension, kPartial or kReplicated.
int place_of(const Sharding& sharding, int axis) {
  if (sharding.partial >> axis & 1u) return kPartial;
  for (int d = 0; d < sharding.rank; ++d) {
    if (sharding.dims[static_cast<std::size_t>(d)].contains(axis)) return d;
  }
  return kReplicated;
}

std::string axis_names(const AxisList& list, const Mesh& mesh) {
  std::string text;
  for (int axis : list) {
    text += fmt::format("{}{}", text.empty() ? "" : "+",
                        mesh.axes[static_cast<std::size_t>(axis)].name);
  }
  return text;
}

}  // namespace

std::string to_string(const Sharding& sharding, const TensorType& type, const Mesh& mesh) {
  std::string text = "[";
  for (int d = 0; d < sharding.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    text += fmt::format("{}{}", d > 0 ? ", " : "", type.dims[i].name);
    if (!sharding.dims[i].empty()) text += ":" + axis_names(sharding.dims[i], mesh);
  }
  text += "]";
  if (sharding.partial != 0) {
    text += fmt::format(" partial({})", axis_names(axes_of_mask(sharding.partial), mesh));
  }
  return text;
}

std::int64_t split_size(std::int64_t size, std::int64_t unit, std::int64_t parts) {
  const std::int64_t units = size / unit;
  return (units + parts - 1) / parts * unit;
}

TensorType local_type(const TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  TensorType local = type;
  for (int d = 0; d < sharding.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (sharding.dims[i].empty()) continue;
    Dim& dim = local.dims[i];
    dim.size = split_size(dim.size, dim.unit, mesh.size(sharding.dims[i]));
  }
  return local;
}

Bytes local_bytes(const TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  double elements = 1;
  for (int d = 0; d < sharding.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    const Dim& dim = type.dims[i];
    elements *= static_cast<double>(
        sharding.dims[i].empty() ? dim.size
                                 : split_size(dim.size, dim.unit, mesh.size(sharding.dims[i])));
  }
  return Bytes(elements * dtype_bytes(type.dtype));
}

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::string_view kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                         "all_to_all", "ring",       "broadcast"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<ReshardStep> reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                                 const Mesh& mesh) {
  MW_CHECK(from.rank == to.rank, "reshard between ranks");
  std::vector<ReshardStep> steps;
  if (from == to) return steps;

  struct Move {
    int axis, source, target;
  };
  std::vector<Move> moves;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    const int source = place_of(from, axis);
    const int target = place_of(to, axis);
    // A sum that stays due needs nothing; making a replicated value partial is a local scaling.
    if (source != target && target != kPartial) moves.push_back({axis, source, target});
  }
  const Bytes start = local_bytes(type, from, mesh);
  double bytes = start.value;
  const auto collect = [&](auto&& wanted) {
    AxisList list;
    for (const Move& m : moves) {
      if (wanted(m)) list.push_back(m.axis);
    }
    return list;
  };
  // Local slices first: everything after moves fewer bytes.
  bytes /=
      mesh.size(collect([](const Move& m) { return m.source == kReplicated && m.target >= 0; }));
  const AxisList scattered =
      collect([](const Move& m) { return m.source == kPartial && m.target >= 0; });
  if (!scattered.empty()) {
    steps.push_back({CollectiveKind::kReduceScatter, scattered, Bytes(bytes)});
    bytes /= mesh.size(scattered);
  }
  const AxisList exchanged = collect([](const Move& m) { return m.source >= 0 && m.target >= 0; });
  if (!exchanged.empty()) steps.push_back({CollectiveKind::kAllToAll, exchanged, Bytes(bytes)});
  // Summing before gathering moves fewer bytes than after.
  const AxisList summed =
      collect([](const Move& m) { return m.source == kPartial && m.target == kReplicated; });
  if (!summed.empty()) steps.push_back({CollectiveKind::kAllReduce, summed, Bytes(bytes)});
  const AxisList gathered =
      collect([](const Move& m) { return m.source >= 0 && m.target == kReplicated; });
  if (!gathered.empty()) {
    bytes *= mesh.size(gathered);
    steps.push_back({CollectiveKind::kAllGather, gathered, Bytes(bytes)});
  }
  return steps;
}

}  // namespace meshwright
