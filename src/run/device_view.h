#pragma once

#include <optional>
#include <vector>

#include "mesh/exchange.h"
#include "plan/program.h"

namespace meshwright {

/// What one device holds of one buffer.
struct LocalBuffer {
  Box box;   ///< Includes rows of neighbours.
  Box core;  ///< Without them.
  /// State sharding: of the elements of `box`, last dim fastest, the device holds [begin, end).
  bool flat = false;
  std::int64_t begin = 0, end = 0;

  std::vector<std::int64_t> shape() const;  ///< Of the tensor: one dim when flat.
  friend bool operator==(const LocalBuffer&, const LocalBuffer&) = default;
};
LocalBuffer local_buffer(const TensorType& type, const Buffer& buffer, const Mesh& mesh,
                         std::span<const int> coordinates);

std::int64_t element_count(const Box& box);

/// The coordinates of a device in a mesh; nothing when it is not there.
std::optional<std::vector<int>> coordinates_of(const Mesh& mesh, DeviceId device);

/// The devices that differ from the one at `coordinates` along `axes` only, by mesh position.
std::vector<std::vector<int>> group_of(const Mesh& mesh, std::span<const int> coordinates,
                                       std::uint32_t axes);

/// Whether this device is the one that counts of those that hold equal parts of a buffer: the
/// first along every axis that neither splits it nor has a part of its sum.
bool is_owner(const Buffer& buffer, const Mesh& mesh, std::span<const int> coordinates);

/// `source` of what one device holds becomes `target` of what another holds, both counted from the
/// first element held there. One dim where either is flat.
struct LocalPiece {
  int peer = 0;  ///< Index into the group.
  Box source, target;
};

/// How one operand of a collective goes from buffer to buffer, for one device.
struct LocalExchange {
  bool sums = false;        ///< All-reduce, reduce-scatter, halo of a gradient: pieces are added.
  bool flat = false;        ///< Both sides are taken as flat: pieces have one dim.
  std::vector<Box> blocks;  ///< All-gather: each member's operand, counted from its own first.
  /// Reduce-scatter: what each member gets of this device's operand. All-gather: where each
  /// member's operand lies in the result. Empty boxes where there is none.
  std::vector<Box> shares;
  std::vector<LocalPiece> give, take;  ///< Otherwise; `keep` is what stays here.
  std::vector<LocalPiece> keep;
};

/// The ways in which a device's part of a collective is run.
enum class ExchangeWay {
  kAllReduce,      ///< Sum of equal parts, then a slice when the result is less.
  kReduceScatter,  ///< `shares` of this device's operand go to the members, and are added there.
  kAllGather,      ///< Every member's operand goes to all.
  kPieces,         ///< Point to point; added to what is there when `sums`.
};

struct LocalCollective {
  ExchangeWay way = ExchangeWay::kPieces;
  std::vector<int> ranks;  ///< Of the group; the order in which all list it.
  std::size_t me = 0;      ///< This device's place in it.
  LocalExchange exchange;
};

/// One operand of a collective instruction of a segment or step, on the device at `coordinates`.
/// `gradient`: the buffers hold a gradient (rings and halos then add).
LocalCollective local_collective(const Instr& instr, bool gradient, const TensorType& type,
                                 const Buffer& in, const Buffer& out, const Mesh& mesh,
                                 std::span<const int> coordinates);

/// One item of a transfer for one device: pieces by rank.
struct LocalTransfer {
  std::optional<LocalBuffer> from, to;       ///< What it sends of, and receives into.
  std::vector<LocalPiece> give, take, keep;  ///< LocalPiece::peer is a rank here.
};
LocalTransfer local_transfer(const TensorType& type, const Transfer::Item& item, bool aligned,
                             const Mesh& from, const Mesh& to, DeviceId device);

}  // namespace meshwright
