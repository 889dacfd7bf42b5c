#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/box.h"
#include "mesh/sharding.h"

namespace meshwright {

/// Part `index` of `interval` cut into `parts` pieces on multiples of `unit`: uneven cuts give the
/// first pieces one unit more; pieces may be empty.
Interval split_interval(const Interval& interval, std::int64_t unit, std::int64_t parts,
                        std::int64_t index);

/// The coordinates of a mesh's device number `position` (axis 0 fastest).
std::vector<int> mesh_coordinates(const Mesh& mesh, std::int64_t position);
/// The device at these coordinates.
DeviceId device_at(const Mesh& mesh, std::span<const int> coordinates);

/// The indices of `type` that the device at `coordinates` holds: per dimension its axes cut it one
/// within the other, outermost first, on multiples of the dimension's unit.
Box box_of(const TensorType& type, const Sharding& sharding, const Mesh& mesh,
           std::span<const int> coordinates);

}  // namespace meshwright
