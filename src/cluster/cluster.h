#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"
#include "base/units.h"

namespace meshwright {

/// One kind of accelerator, from its datasheet. Rates are dense peaks; what is reached in practice
/// lives in the efficiency files of the cost model (data/efficiency), never here.
struct DeviceKind {
  std::string name;          ///< Catalogue name, lower case: "h100-sxm-80".
  std::string vendor;        ///< "nvidia", "amd", "google", "cpu".
  std::string architecture;  ///< "volta", "ampere", "hopper", "cdna3", "tpu-v5p", "cpu", ...
  Bytes memory;  ///< Device memory as the runtime reports it (80 GB cards have 79.1 GiB).
  BytesPerSecond memory_bandwidth;  ///< HBM/GDDR peak.
  FlopsPerSecond fp32;              ///< Plain fp32 (vector) peak.
  FlopsPerSecond fp64;              ///< Plain fp64 peak; 0 = half of fp32.
  FlopsPerSecond tf32;              ///< 0 when the device has none.
  FlopsPerSecond bf16;  ///< Dense bf16 matrix peak; 0 when the device has none (V100, T4).
  FlopsPerSecond fp16;  ///< Dense fp16 matrix peak.
  FlopsPerSecond fp8;   ///< Dense fp8 matrix peak; 0 when the device has none.
  std::string link;     ///< What device_link is: "nvlink", "xgmi", "ici", "shm"; "" = PCIe only.
  BytesPerSecond device_link;   ///< NVLink / xGMI / ICI per device and direction; 0 = PCIe only.
  BytesPerSecond pcie;          ///< Link to the host (PCIe, NVLink-C2C) per device and direction.
  double dollars_per_hour = 0;  ///< A typical public-cloud price per device, 0 = unknown.
};

/// Point in the tree of the machine room. Leaves are devices; an inner domain is what its children
/// can talk through at full speed (NVLink island, PCIe switch, host, rack, spine). Every domain but
/// the root has one uplink, which all traffic between its inside and its outside crosses.
struct Domain {
  std::string name;   ///< "host3", "rack0", "d17"; unique.
  std::string level;  ///< "device", "nvlink", "pcie", "host", "rack", "spine".
  std::string link;   ///< What the uplink is made of: "nvlink", "xgmi", "ici", "pcie", "ib", "eth".
  int parent = -1;    ///< Index of the parent domain, -1 for the root.
  int first_device = 0;  ///< Devices below it are first_device .. first_device + device_count - 1.
  int device_count = 0;
  BytesPerSecond uplink;  ///< Total bandwidth of the uplink per direction (all NICs together).
  /// What one device alone can get of the uplink (its own NIC or rail); 0 = all of it. Eight
  /// devices with a 50 GB/s NIC each: uplink 400 GB/s, lane 50 GB/s.
  BytesPerSecond lane;
  /// When the children are joined by direct links instead of a switch: bandwidth per direction of
  /// one pair of children, so two of them get less than their uplinks promise; 0 = switched.
  BytesPerSecond pair_limit;
  /// Latency that the uplink adds to a message which leaves the domain, there and into its sibling
  /// together: a path from a to b pays this once per level it climbs (device, then host, ...).
  Seconds latency;
};

/// Devices, hosts and links as a tree. Device ids are the leaves from left to right, so a host's
/// devices are consecutive. Mixed device kinds and unequal hosts are legal.
struct Cluster {
  std::string name;  ///< As the user wrote it: "dgx-h100:8", "lab.yaml".
  std::vector<DeviceKind> kinds;
  std::vector<int> device_kind;    ///< Per device, an index into `kinds`.
  std::vector<Domain> domains;     ///< In preorder, so parents come first; domains[0] is the root.
  std::vector<int> device_domain;  ///< Per device, its leaf domain.
  std::vector<int> device_host;    ///< Per device, the index of its host (0-based).
  std::vector<std::string> hosts;  ///< Host names.
  Bytes host_memory;               ///< RAM per host (of the smallest one), 0 = unknown.

  int device_count() const { return static_cast<int>(device_kind.size()); }
  const DeviceKind& kind(DeviceId id) const {
    return kinds[static_cast<std::size_t>(device_kind[id.index()])];
  }
  bool homogeneous() const { return kinds.size() == 1; }
};

/// The shipped device catalogue, sorted by name.
const std::vector<DeviceKind>& device_catalogue();

/// Finds a catalogue entry by name or alias, case-insensitive ("H100", "a100-80", "A100-SXM-80GB").
/// Throws Error naming the nearest entries.
const DeviceKind& find_device(std::string_view name);

/// Reads a cluster from a shorthand ("dgx-h100:8", "a100-80:4x8@ib200", "cpu:4") or, when `text`
/// names an existing file or ends in .yaml/.yml/.json, from a cluster file
/// (docs/cluster_format.md). Throws Error.
Cluster read_cluster(std::string_view text);

/// Parses the YAML (or JSON) text of a cluster file; `source` is used in errors as
/// `source:line:column`.
Cluster parse_cluster_yaml(std::string_view text, std::string_view source);

/// Checks every invariant above; throws Error naming the domain and the value.
void check_cluster(const Cluster& cluster);

/// The smallest domain that holds all of `devices`: an index into `cluster.domains`.
int smallest_domain(const Cluster& cluster, const std::vector<DeviceId>& devices);

/// The tree, one line per level: identical subtrees are drawn once with their count. Bandwidths are
/// per direction in GB/s and Gb/s. Ends with one line per device kind.
std::string describe(const Cluster& cluster);

/// The cluster as the text of a cluster file (the `tree:` form, JSON), from which
/// parse_cluster_yaml makes an equal cluster. Identical subtrees are written once with their count.
std::string print_cluster(const Cluster& cluster);

/// The cluster spelled out for other programs, as JSON (docs/cluster_format.md, "For other
/// programs"): every kind, host, device and domain on a line of its own, plain numbers in bytes,
/// bytes per second, FLOP per second and seconds.
std::string list_cluster(const Cluster& cluster);

/// One ready-made shorthand family for `meshwright clusters`: name, what it stands for.
struct ClusterPreset {
  std::string_view name;    ///< "dgx-h100"
  std::string_view device;  ///< Catalogue name.
  int devices_per_host;
  std::string_view summary;  ///< "8x H100 SXM, NVSwitch, 8x 400 Gb/s InfiniBand".
};
const std::vector<ClusterPreset>& cluster_presets();

}  // namespace meshwright
