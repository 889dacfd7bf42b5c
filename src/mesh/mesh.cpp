#include "mesh/mesh.h"

#include "base/error.h"

namespace meshwright {

void AxisList::fail_full() { throw InternalError("more than seven mesh axes in one list"); }

AxisList axes_of_mask(std::uint32_t mask) {
  AxisList list;
  for (int axis = 0; mask != 0; ++axis, mask >>= 1) {
    if (mask & 1u) list.push_back(axis);
  }
  return list;
}

int Mesh::device_count() const {
  int count = 1;
  for (const MeshAxis& axis : axes) count *= axis.size;
  return count;
}

int Mesh::size(const AxisList& list) const {
  int count = 1;
  for (int axis : list) count *= axes[static_cast<std::size_t>(axis)].size;
  return count;
}

std::vector<DeviceId> Mesh::group(const AxisList& list) const {
  std::vector<DeviceId> devices = {DeviceId(first_device)};
  for (int axis : list) {
    const MeshAxis& a = axes[static_cast<std::size_t>(axis)];
    std::vector<DeviceId> next;
    next.reserve(devices.size() * static_cast<std::size_t>(a.size));
    for (DeviceId base : devices) {
      for (int i = 0; i < a.size; ++i) next.push_back(DeviceId(base.value + i * a.stride));
    }
    devices = std::move(next);
  }
  return devices;
}

int Mesh::axis(std::string_view name) const {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace meshwright
