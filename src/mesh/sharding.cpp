#include "mesh/sharding.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

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
  make_local(local, sharding, mesh);
  return local;
}

void make_local(TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  for (int d = 0; d < sharding.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (sharding.dims[i].empty()) continue;
    Dim& dim = type.dims[i];
    dim.size = split_size(dim.size, dim.unit, mesh.size(sharding.dims[i]));
  }
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
  constexpr std::string_view kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                         "ring",       "broadcast",  "halo",           "permute"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace meshwright
