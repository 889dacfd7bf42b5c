#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.h"

namespace meshwright {

/// The machine room as people describe it: runs of equal hosts, and the network above them. A
/// shorthand and a cluster file are both read into this, and build_cluster makes the tree from it.

constexpr int kMaxDevices = 1 << 20;
constexpr int kMaxDevicesPerHost = 1024;
constexpr int kMaxNicsPerHost = 1024;

/// A group of consecutive devices inside a host (an NVLink pair, a PCIe switch, a socket).
struct GroupSpec {
  std::string level;
  int group = 0;  ///< Devices per group; the last group of a host may be smaller.
  std::string link;
  BytesPerSecond uplink;
  BytesPerSecond lane;
  BytesPerSecond pair_limit;
  Seconds latency{-1};  ///< Negative = what data/links.json says for the link.
};

struct DeviceRun {
  int kind = 0;  ///< Index into the kinds given to build_cluster.
  int count = 0;
};

struct HostSpec {
  std::string name = "host";
  bool numbered = true;  ///< host0, host1, ...; false: the name is used as it is.
  std::vector<DeviceRun> devices;
  bool pcie_only = false;         ///< Ignore the devices' own links.
  BytesPerSecond device_uplink;   ///< 0 = what the device kind says.
  std::string device_link;        ///< "" = what the device kind says.
  Seconds device_latency{-1};     ///< Negative = what data/links.json says for the link.
  std::vector<GroupSpec> inside;  ///< Innermost first.
  BytesPerSecond pair_limit;      ///< Of the devices (or outermost groups) of the host.
  int nic_count = 0;              ///< 0 = no network.
  BytesPerSecond nic;             ///< Of one NIC per direction.
  std::string nic_link;
  Seconds nic_latency{-1};  ///< Negative = what data/links.json says.
  Bytes ram;

  int device_count() const;
};

struct HostRun {
  HostSpec host;
  int count = 0;
};

/// One level of the network above the hosts. Its domains hold `hosts_per` consecutive hosts each.
struct NetworkLevel {
  std::string level = "rack";
  int hosts_per = 0;  ///< 0 = all hosts (only for the last level).
  bool joins_devices =
      false;  ///< The devices, not the hosts, are the children (NVL72, a TPU torus).
  double oversubscription = 1;  ///< The uplink is what the children's uplinks add up to over this.
  BytesPerSecond uplink;        ///< 0 = by oversubscription.
  BytesPerSecond lane;          ///< 0 = as the hosts below.
  BytesPerSecond pair_limit;
  std::string link;     ///< "" = as the hosts below.
  Seconds latency{-1};  ///< Negative = one tier of `link`.
};

/// Hosts that share a network below the spine.
struct RoomPart {
  std::vector<HostRun> hosts;
  std::vector<NetworkLevel> levels;  ///< Innermost first.
};

/// Makes the tree. Parts are joined under one root. Levels that would hold everything in one domain
/// are left out, since they bound nothing. Throws Error when there is no device, more than
/// kMaxDevices, or a host without a network among several.
Cluster build_cluster(std::string name, std::vector<DeviceKind> kinds,
                      const std::vector<RoomPart>& parts);

/// Keeps the kinds that some device has, in the order of their first devices.
void drop_unused_kinds(Cluster& cluster);

}  // namespace meshwright
