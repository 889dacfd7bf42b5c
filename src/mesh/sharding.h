#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/tensor_type.h"
#include "mesh/mesh.h"

namespace meshwright {

/// How a value lies on a mesh: per dimension the axes that split it (outermost first), and the axes
/// along which every device holds an additive part of it. Along all other axes it is replicated.
struct Sharding {
  static constexpr int kMaxRank = 8;

  std::uint8_t rank = 0;
  std::array<AxisList, kMaxRank> dims{};
  std::uint32_t partial = 0;  ///< Bit per mesh axis.

  friend bool operator==(const Sharding&, const Sharding&) = default;

  /// The same with no sum due.
  Sharding resolved() const {
    Sharding copy = *this;
    copy.partial = 0;
    return copy;
  }
};

/// Rows of neighbours that a device holds besides its part of one dimension (a convolution's
/// windows reach over its border); at the ends of the dimension there are none.
struct Halo {
  std::int8_t dim = -1;  ///< -1 = no halo.
  std::int32_t before = 0, after = 0;

  friend bool operator==(const Halo&, const Halo&) = default;
};

/// "[batch:dp, seq:tp, hidden] partial(tp)".
std::string to_string(const Sharding& sharding, const TensorType& type, const Mesh& mesh);

/// Size of the largest part when `size` elements in units of `unit` are split into `parts` (uneven
/// splits give the first parts one unit more).
std::int64_t split_size(std::int64_t size, std::int64_t unit, std::int64_t parts);

/// The type of the largest shard.
TensorType local_type(const TensorType& type, const Sharding& sharding, const Mesh& mesh);
/// The same in place.
void make_local(TensorType& type, const Sharding& sharding, const Mesh& mesh);

/// Bytes of the largest shard.
Bytes local_bytes(const TensorType& type, const Sharding& sharding, const Mesh& mesh);

enum class CollectiveKind : std::uint8_t {
  kAllReduce,      ///< bytes = the buffer of one device.
  kAllGather,      ///< bytes = the gathered result on one device.
  kReduceScatter,  ///< bytes = the full input on one device.
  kAllToAll,       ///< bytes = the input of one device.
  kRing,  ///< Neighbour exchange repeated around the group (ring attention); bytes = all rounds
          ///< together.
  kBroadcast,  ///< bytes = the buffer of one device.
  kHalo,       ///< Neighbours exchange the rows at their borders; bytes = those of one device.
  kPermute,    ///< Every device takes pieces from others in the group; bytes = the result on one.
};
std::string_view collective_name(CollectiveKind kind);

/// One step of a reshard: a local slice, or a collective over the devices along `axes`.
struct ReshardStep {
  CollectiveKind kind = CollectiveKind::kAllGather;
  AxisList axes;
  Bytes bytes;
  Sharding to;         ///< How the value lies after the step.
  bool local = false;  ///< A slice of what the device has; `kind` and `axes` mean nothing.
};

/// The steps that turn `from` into `to` on one mesh, by fewest bytes sent per device (reshard.cpp).
/// Never fails: every sharding of the same rank can be reached, unless a sum is due in `to` that
/// `from` has not (InternalError).
std::vector<ReshardStep> reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                                 const Mesh& mesh);

/// Remembers the reshards that had to be searched for, across meshes.
class ReshardCache {
 public:
  std::vector<ReshardStep> reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                                   const Mesh& mesh);

 private:
  std::map<std::vector<std::int64_t>, std::vector<ReshardStep>> found_;
};

/// Bytes that one device sends in the steps of a reshard.
double reshard_traffic(const std::vector<ReshardStep>& steps, const Mesh& mesh);

}  // namespace meshwright
