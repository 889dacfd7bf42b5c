#include "cluster/shorthand.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/format.h"
#include "base/spelling.h"
#include "cluster/catalogue.h"
#include "cluster/room.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxParts = 64;
constexpr std::string_view kExamples =
    "dgx-h100:8, a100-80:4x8@ib200, dgx-a100:2+dgx-h100:2, cpu:4";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char at) {
  const auto position = text.find(at);
  if (position == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, position), text.substr(position + 1)};
}

// A count in [1, kMaxDevices].
int count_of(std::string_view text, std::string_view what, std::string_view example) {
  const std::string hint = fmt::format("e.g. {}", example);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) {
    throw Error(fmt::format("{} is not a number of {}", in_quotes(text), what), "", hint);
  }
  while (text.size() > 1 && text.front() == '0') text.remove_prefix(1);
  std::int64_t value = kMaxDevices + 1;
  if (text.size() <= 9) value = std::stoll(std::string(text));
  if (value < 1 || value > kMaxDevices) {
    throw Error(fmt::format("{} {}: it must be between 1 and {}", text.substr(0, 20), what,
                            format_integer(kMaxDevices)),
                "", hint);
  }
  return static_cast<int>(value);
}

// "ib200" = one NIC per device, "eth100" = one per host, "ib200x4" = four per host.
void apply_network(std::string_view text, HostSpec& host) {
  constexpr std::string_view kExample = "@ib200 (per device), @eth100 (per host), @ib200x4";
  const auto digits = text.find_first_of("0123456789");
  const std::string_view kind = text.substr(0, digits);
  constexpr std::string_view kNetworks[] = {"ib", "roce", "efa", "opa", "slingshot", "eth"};
  if (std::find(std::begin(kNetworks), std::end(kNetworks), kind) == std::end(kNetworks)) {
    throw Error(fmt::format("unknown network {}", in_quotes(text)), "",
                fmt::format("one of {}, e.g. {}", fmt::join(kNetworks, ", "), kExample));
  }
  const auto [speed, nics] = digits == std::string_view::npos
                                 ? std::pair(std::string_view(), std::optional<std::string_view>())
                                 : cut(text.substr(digits), 'x');
  const int gbps = count_of(speed, "Gb/s", kExample);
  if (gbps > 100000) {
    throw Error(fmt::format("a NIC of {} Gb/s: it must be at most 100,000", format_integer(gbps)),
                "", fmt::format("e.g. {}", kExample));
  }
  host.nic = BytesPerSecond(gbps * 1e9 / 8);
  host.nic_link = kind;
  host.nic_count = kind == "eth" ? 1 : host.device_count();
  if (nics) {
    host.nic_count = count_of(*nics, "NICs", kExample);
    if (host.nic_count > kMaxNicsPerHost) {
      throw Error(fmt::format("{} NICs in a host: at most {}", format_integer(host.nic_count),
                              format_integer(kMaxNicsPerHost)),
                  "", fmt::format("e.g. {}", kExample));
    }
  }
}

// A host of `devices` devices with the NICs of a preset that was made for another number.
void resize_host(HostSpec& host, int devices) {
  const int usual = host.device_count();
  if (devices == usual) return;
  host.devices.front().count = devices;
  const int scaled = (host.nic_count * devices + usual - 1) / usual;
  host.nic_count = host.nic_count >= usual ? scaled : std::clamp(scaled, 1, host.nic_count);
}

std::vector<NetworkLevel> network_of(const HostPreset& preset, int devices_per_host) {
  std::vector<NetworkLevel> levels;
  if (preset.island_devices > 0) {
    NetworkLevel island = preset.island;
    island.hosts_per = std::max(1, preset.island_devices / devices_per_host);
    levels.push_back(std::move(island));
  }
  // A rack that is no larger than an island bounds nothing.
  NetworkLevel rack;
  rack.hosts_per = preset.rack_hosts;
  if (levels.empty()) levels.push_back(std::move(rack));
  return levels;
}

std::pair<DeviceKind, RoomPart> parse_part(std::string_view text) {
  const auto [body, network] = cut(text, '@');
  const auto [name_text, count_text] = cut(body, ':');
  const std::string_view name = trimmed(name_text);
  if (name.empty()) {
    throw Error("a name of a host or a device is missing", "", fmt::format("e.g. {}", kExamples));
  }
  RoomPart room;
  DeviceKind kind;
  int hosts = 1;
  HostRun run;
  if (const HostPreset* preset = find_preset(name)) {
    const std::string example = fmt::format("{}:8", preset->name);
    const int units = count_text ? count_of(*count_text, "hosts", example) : 1;
    hosts = static_cast<int>(
        std::min<std::int64_t>(static_cast<std::int64_t>(units) * preset->unit_hosts, kMaxDevices));
    kind = find_device(preset->device);
    run.host = preset->host;
    room.levels = network_of(*preset, run.host.device_count());
  } else {
    const DeviceKind* found = nullptr;
    try {
      found = &find_device(name);
    } catch (const Error&) {
      throw Error(
          fmt::format("unknown host or device {}", in_quotes(name)), "",
          fmt::format("the nearest ones are {}; `meshwright clusters` lists all; a cluster file "
                      "must exist or end in .yaml",
                      fmt::join(nearest_names(name, known_hardware_names(), 4), ", ")));
    }
    const HostPreset& usual = default_host(*found);
    const int usual_size = usual.host.device_count();
    const std::string example = fmt::format("{0}:{1} or {0}:4x{1}", name, usual_size);
    int per_host = 1;
    if (count_text) {
      const auto [first, second] = cut(*count_text, 'x');
      if (second) {
        hosts = count_of(first, "hosts", example);
        per_host = count_of(*second, "devices per host", example);
      } else {
        per_host = count_of(first, "devices", example);
        // "h100:64" is more likely meant as 64 devices in hosts of 8 than as one host of 64.
        if (per_host > usual_size && per_host > 8) {
          throw Error(
              fmt::format("{}:{} would be one host with {} devices, and such hosts have {}", name,
                          per_host, format_integer(per_host), usual_size),
              "",
              per_host % usual_size == 0
                  ? fmt::format("{0}:{1}x{2} is {1} hosts of {2}; {0}:1x{3} insists on one host",
                                name, per_host / usual_size, usual_size, per_host)
                  : fmt::format("e.g. {}:4x{}", name, usual_size));
        }
      }
    }
    if (per_host > kMaxDevicesPerHost) {
      throw Error(fmt::format("{} devices in one host: at most {}", format_integer(per_host),
                              format_integer(kMaxDevicesPerHost)),
                  "", fmt::format("e.g. {}", example));
    }
    kind = found->vendor == "cpu" ? cpu_share(per_host) : *found;
    run.host = usual.host;
    resize_host(run.host, per_host);
    if (kind.vendor == "cpu") run.host.ram = kind.memory * per_host;
    room.levels = network_of(usual, per_host);
  }
  if (network) apply_network(*network, run.host);
  run.count = hosts;
  room.hosts.push_back(std::move(run));
  return {std::move(kind), std::move(room)};
}

}  // namespace

Cluster parse_shorthand(std::string_view text) {
  const std::string where = fmt::format("cluster {}", in_quotes(text));
  if (text.size() > kMaxText) {
    throw Error(fmt::format("longer than {} characters", kMaxText), where,
                "write a cluster file (docs/cluster_format.md)");
  }
  std::vector<DeviceKind> kinds;
  std::vector<RoomPart> parts;
  std::string_view rest = text;
  try {
    for (;;) {
      const auto [part_text, more] = cut(rest, '+');
      auto [kind, part] = parse_part(trimmed(part_text));
      const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const DeviceKind& known) {
        return known.name == kind.name;
      });
      if (same != kinds.end() && same->memory != kind.memory) {
        throw Error("hosts that share out a CPU need equally many devices", "", "e.g. cpu:2x4");
      }
      part.hosts.front().host.devices.front().kind = static_cast<int>(same - kinds.begin());
      if (same == kinds.end()) kinds.push_back(std::move(kind));
      parts.push_back(std::move(part));
      if (!more) break;
      if (parts.size() == kMaxParts) {
        throw Error(fmt::format("more than {} parts joined by +", kMaxParts));
      }
      rest = *more;
    }
    Cluster cluster = build_cluster(std::string(text), std::move(kinds), parts);
    check_cluster(cluster);
    return cluster;
  } catch (const Error& error) {
    throw error.within(where);
  }
}

}  // namespace meshwright
