#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/region.h"

namespace meshwright {

/// One device's share of a tensor.
struct Holding {
  DeviceId device;
  Box box;
};

/// `receiver` takes `box` from `sender` (itself: a local copy).
struct ExchangePiece {
  DeviceId receiver;
  DeviceId sender;
  Box box;
  friend bool operator==(const ExchangePiece&, const ExchangePiece&) = default;
};

/// How a tensor moves between two placements.
struct Exchange {
  std::vector<ExchangePiece> pieces;  ///< By receiver, in the order given.
  Bytes most_sent;                    ///< By any device, local copies left out.
  Bytes most_received;
  Bytes total;
};

/// The general way to move a tensor: every receiver takes what it holds already, and the rest from
/// the least loaded of the senders that hold it (ties: the lowest device). Placements may be equal,
/// overlapping, disjoint or uneven; a device occurs at most once on each side. Devices with equal
/// boxes are handled together, so that thousands of devices take milliseconds. Deterministic.
/// Throws Error naming receiver and region when the senders do not cover it.
Exchange exchange(std::span<const Holding> senders, std::span<const Holding> receivers,
                  double bytes_per_element);

/// The same between two shardings on two meshes; no sum may be due.
Exchange exchange(const TensorType& type, const Sharding& from, const Mesh& from_mesh,
                  const Sharding& to, const Mesh& to_mesh);

/// The most bytes that one device sends or receives in that exchange, without the pieces.
Bytes exchange_bytes(const TensorType& type, const Sharding& from, const Mesh& from_mesh,
                     const Sharding& to, const Mesh& to_mesh);

}  // namespace meshwright
