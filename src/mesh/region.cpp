#include "mesh/region.h"

#include <algorithm>

namespace meshwright {

Interval split_interval(const Interval& interval, std::int64_t unit, std::int64_t parts,
                        std::int64_t index) {
  // Only the last piece may end off a multiple of the unit.
  const std::int64_t units = (interval.size() + unit - 1) / unit;
  const std::int64_t each = units / parts;
  const std::int64_t more = units % parts;
  const std::int64_t before = index * each + std::min(index, more);
  const std::int64_t mine = each + (index < more ? 1 : 0);
  return {std::min(interval.begin + before * unit, interval.end),
          std::min(interval.begin + (before + mine) * unit, interval.end)};
}

std::vector<int> mesh_coordinates(const Mesh& mesh, std::int64_t position) {
  std::vector<int> coordinates;
  coordinates.reserve(mesh.axes.size());
  for (const MeshAxis& axis : mesh.axes) {
    coordinates.push_back(static_cast<int>(position % axis.size));
    position /= axis.size;
  }
  return coordinates;
}

DeviceId device_at(const Mesh& mesh, std::span<const int> coordinates) {
  std::int64_t device = mesh.first_device;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    device += std::int64_t{coordinates[i]} * mesh.axes[i].stride;
  }
  return DeviceId(device);
}

Box box_of(const TensorType& type, const Sharding& sharding, const Mesh& mesh,
           std::span<const int> coordinates) {
  Box box(type.dims.size());
  for (std::size_t d = 0; d < box.size(); ++d) {
    box[d] = {0, type.dims[d].size};
    if (d >= sharding.rank) continue;
    for (int axis : sharding.dims[d]) {
      const auto a = static_cast<std::size_t>(axis);
      box[d] = split_interval(box[d], type.dims[d].unit, mesh.axes[a].size, coordinates[a]);
    }
  }
  return box;
}

}  // namespace meshwright
