#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.h"
#include "cluster/room.h"

namespace meshwright {

/// A kind of link and what it adds to a message (data/links.json).
struct LinkKind {
  std::string name;
  Seconds latency;
  Seconds tier_latency;  ///< Of one more switch tier of the same network.
};

/// Throws Error naming the nearest kinds.
const LinkKind& find_link(std::string_view name);
std::vector<std::string> link_names();

/// A ready-made host (data/hosts.json).
struct HostPreset {
  std::string name;
  std::vector<std::string> aliases;
  std::string device;  ///< Catalogue name; "" for the generic hosts.
  std::string summary;
  HostSpec host;       ///< With one DeviceRun of kind 0.
  int unit_hosts = 1;  ///< Hosts per unit of the count in "name:count".
  int rack_hosts = 32;
  int island_devices = 0;  ///< Devices of several hosts joined directly; 0 = none.
  NetworkLevel island;
};

/// Presets that a user can name, then generic hosts.
const std::vector<HostPreset>& host_presets();
/// By name or alias, case-insensitive; null when there is none.
const HostPreset* find_preset(std::string_view name);
/// The host that devices of this kind usually sit in.
const HostPreset& default_host(const DeviceKind& kind);

/// Every name that find_device or find_preset knows, for "did you mean".
std::vector<std::string> known_hardware_names();

/// The "cpu" entry with a share of this machine: cores and memory divided by `devices`.
DeviceKind cpu_share(int devices);

}  // namespace meshwright
