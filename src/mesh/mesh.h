#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"

namespace meshwright {

/// An ordered list of mesh axes, at most seven, outermost first. Small and comparable: shardings
/// are copied by the million while a search runs.
class AxisList {
 public:
  static constexpr int kCapacity = 7;

  constexpr AxisList() = default;
  constexpr AxisList(std::initializer_list<int> axes) {
    for (int axis : axes) push_back(axis);
  }
  constexpr int size() const { return count_; }
  constexpr bool empty() const { return count_ == 0; }
  constexpr int operator[](int i) const { return axis_[static_cast<std::size_t>(i)]; }
  constexpr const std::uint8_t* begin() const { return axis_.data(); }
  constexpr const std::uint8_t* end() const { return axis_.data() + count_; }
  /// Throws InternalError past the capacity.
  constexpr void push_back(int axis) {
    if (count_ == kCapacity) fail_full();
    axis_[count_++] = static_cast<std::uint8_t>(axis);
  }
  constexpr void append(const AxisList& other) {
    for (int axis : other) push_back(axis);
  }
  constexpr bool contains(int axis) const {
    for (int a : *this) {
      if (a == axis) return true;
    }
    return false;
  }
  constexpr std::uint32_t mask() const {
    std::uint32_t bits = 0;
    for (int a : *this) bits |= 1u << a;
    return bits;
  }
  friend constexpr bool operator==(const AxisList&, const AxisList&) = default;

 private:
  [[noreturn]] static void fail_full();

  std::uint8_t count_ = 0;
  std::array<std::uint8_t, kCapacity> axis_{};
};

/// The axes of a bit mask, lowest first.
AxisList axes_of_mask(std::uint32_t mask);

/// One named axis: neighbours along it are `stride` devices apart.
struct MeshAxis {
  std::string name;
  int size = 1;
  int stride = 1;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

/// A p-mesh: a grid of devices, `first_device + sum(coordinate * stride)` at each coordinate. Axes
/// of size 1 are left out.
struct Mesh {
  std::vector<MeshAxis> axes;
  int first_device = 0;

  int device_count() const;
  /// Product of the sizes of the listed axes.
  int size(const AxisList& list) const;
  /// The devices that share the group of the mesh's first device along `list`, in list order
  /// (outermost axis slowest).
  std::vector<DeviceId> group(const AxisList& list) const;
  /// Index of a named axis, or -1.
  int axis(std::string_view name) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

}  // namespace meshwright
