#include "cluster/room.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/format.h"
#include "cluster/catalogue.h"

namespace meshwright {
namespace {

// What a domain offers to the level above it.
struct Uplink {
  BytesPerSecond bandwidth;
  BytesPerSecond lane;
  std::string link;
};

Seconds latency_or_default(Seconds given, std::string_view link) {
  return given.value >= 0 ? given : find_link(link).latency;
}

class TreeBuilder {
 public:
  TreeBuilder(std::string name, std::vector<DeviceKind> kinds) {
    cluster_.name = std::move(name);
    cluster_.kinds = std::move(kinds);
  }

  Cluster build(const std::vector<RoomPart>& parts);

 private:
  using Hosts = std::vector<const HostSpec*>;

  // A level in use, with its place in the list below the root.
  using Levels = std::vector<NetworkLevel>;

  static Hosts expand(const RoomPart& part);
  static Levels useful_levels(const RoomPart& part, std::size_t host_count, bool under_a_root);

  int open(std::string level, std::string name, int parent);
  void close(int domain);
  std::string numbered(const std::string& prefix);
  std::string host_name(const HostSpec& host) {
    return host.numbered ? numbered(host.name) : host.name;
  }

  void add_below(int parent, const Hosts& hosts, std::size_t first, std::size_t last,
                 const Levels& levels, std::size_t level);
  void add_host(int parent, const HostSpec& host);
  void add_devices(int parent, const HostSpec& host, std::string name);
  void add_group(int parent, const HostSpec& host, const std::vector<int>& kinds, int first,
                 int last, std::size_t level, int host_size);
  void set_uplink(int domain, const Uplink& uplink, Seconds latency);
  static Uplink host_uplink(const HostSpec& host, const std::vector<DeviceKind>& kinds);
  Uplink level_uplink(const NetworkLevel& level, const Hosts& hosts, std::size_t first,
                      std::size_t last, int domain) const;

  Cluster cluster_;
  std::map<std::string, int> next_number_;
};

TreeBuilder::Hosts TreeBuilder::expand(const RoomPart& part) {
  Hosts hosts;
  for (const HostRun& run : part.hosts) {
    hosts.insert(hosts.end(), static_cast<std::size_t>(run.count), &run.host);
  }
  return hosts;
}

// Drops levels, from the outside, that would put everything into a single domain: below a root they
// would be that root's only child. An island stays, since it changes where the devices are
// attached.
TreeBuilder::Levels TreeBuilder::useful_levels(const RoomPart& part, std::size_t host_count,
                                               bool under_a_root) {
  Levels levels = part.levels;
  const auto holds_all = [&](const NetworkLevel& level) {
    return level.hosts_per == 0 || static_cast<std::size_t>(level.hosts_per) >= host_count;
  };
  while (!levels.empty() && holds_all(levels.back())) {
    const bool next_holds_all = levels.size() > 1 && holds_all(levels[levels.size() - 2]);
    if (next_holds_all || (under_a_root && !levels.back().joins_devices)) {
      levels.pop_back();
    } else {
      break;
    }
  }
  return levels;
}

int TreeBuilder::open(std::string level, std::string name, int parent) {
  Domain domain;
  domain.level = std::move(level);
  domain.name = std::move(name);
  domain.parent = parent;
  domain.first_device = cluster_.device_count();
  cluster_.domains.push_back(std::move(domain));
  return static_cast<int>(cluster_.domains.size()) - 1;
}

void TreeBuilder::close(int domain) {
  Domain& closed = cluster_.domains[static_cast<std::size_t>(domain)];
  closed.device_count = cluster_.device_count() - closed.first_device;
}

std::string TreeBuilder::numbered(const std::string& prefix) {
  return fmt::format("{}{}", prefix, next_number_[prefix]++);
}

void TreeBuilder::set_uplink(int domain, const Uplink& uplink, Seconds latency) {
  Domain& set = cluster_.domains[static_cast<std::size_t>(domain)];
  set.uplink = uplink.bandwidth;
  set.lane = uplink.lane < uplink.bandwidth ? uplink.lane : BytesPerSecond(0);
  set.link = uplink.link;
  set.latency = latency;
}

Uplink TreeBuilder::host_uplink(const HostSpec& host, const std::vector<DeviceKind>& kinds) {
  const int devices = host.device_count();
  // A device reaches the NICs near it, over its own link to the host.
  double lane = host.nic.value * std::max(1, host.nic_count / std::max(1, devices));
  for (const DeviceRun& run : host.devices) {
    const double pcie = kinds[static_cast<std::size_t>(run.kind)].pcie.value;
    if (pcie > 0) lane = std::min(lane, pcie);
  }
  return {host.nic * host.nic_count, BytesPerSecond(lane), host.nic_link};
}

Uplink TreeBuilder::level_uplink(const NetworkLevel& level, const Hosts& hosts, std::size_t first,
                                 std::size_t last, int domain) const {
  Uplink uplink;
  BytesPerSecond sum, lane;
  for (std::size_t i = first; i < last; ++i) {
    const Uplink below = host_uplink(*hosts[i], cluster_.kinds);
    sum += below.bandwidth;
    if (i == first || below.lane < lane) lane = below.lane;
    if (uplink.link.empty()) uplink.link = below.link;
  }
  if (!level.joins_devices) {
    // The children's own uplinks, which may be oversubscribed already.
    sum = {};
    for (std::size_t i = static_cast<std::size_t>(domain) + 1; i < cluster_.domains.size(); ++i) {
      if (cluster_.domains[i].parent == domain) sum += cluster_.domains[i].uplink;
    }
  }
  uplink.bandwidth = level.uplink.value > 0 ? level.uplink : sum / level.oversubscription;
  uplink.lane = level.lane.value > 0 ? level.lane : lane;
  if (!level.link.empty()) uplink.link = level.link;
  return uplink;
}

// Adds hosts[first, last) under `parent`: as domains of levels[level - 1] when there are levels
// left, else directly.
void TreeBuilder::add_below(int parent, const Hosts& hosts, std::size_t first, std::size_t last,
                            const Levels& levels, std::size_t level) {
  if (level == 0) {
    for (std::size_t i = first; i < last; ++i) add_host(parent, *hosts[i]);
    return;
  }
  const NetworkLevel& spec = levels[level - 1];
  const std::size_t step =
      spec.hosts_per == 0 ? last - first : static_cast<std::size_t>(spec.hosts_per);
  for (std::size_t from = first; from < last; from += step) {
    const std::size_t to = std::min(last, from + step);
    const int domain = open(spec.level, numbered(spec.level), parent);
    cluster_.domains.back().pair_limit = spec.pair_limit;
    if (spec.joins_devices) {
      for (std::size_t i = from; i < to; ++i) {
        add_devices(domain, *hosts[i], host_name(*hosts[i]));
      }
    } else {
      add_below(domain, hosts, from, to, levels, level - 1);
    }
    close(domain);
    if (parent < 0) continue;
    const Uplink uplink = level_uplink(spec, hosts, from, to, domain);
    const LinkKind& link = find_link(uplink.link);
    const Seconds latency = spec.latency.value >= 0 ? spec.latency
                            : spec.joins_devices    ? link.latency
                                                    : link.tier_latency;
    set_uplink(domain, uplink, latency);
  }
}

void TreeBuilder::add_host(int parent, const HostSpec& host) {
  const std::string name = host_name(host);
  const int domain = open("host", name, parent);
  add_devices(domain, host, name);
  close(domain);
  if (parent >= 0) {
    set_uplink(domain, host_uplink(host, cluster_.kinds),
               latency_or_default(host.nic_latency, host.nic_link));
  }
}

void TreeBuilder::add_devices(int parent, const HostSpec& host, std::string name) {
  const int index = static_cast<int>(cluster_.hosts.size());
  cluster_.hosts.push_back(std::move(name));
  std::vector<int> kinds;
  for (const DeviceRun& run : host.devices) {
    kinds.insert(kinds.end(), static_cast<std::size_t>(run.count), run.kind);
  }
  const int size = static_cast<int>(kinds.size());
  cluster_.device_host.insert(cluster_.device_host.end(), kinds.size(), index);
  if (host.ram.value > 0 && (cluster_.host_memory.value == 0 || host.ram < cluster_.host_memory)) {
    cluster_.host_memory = host.ram;
  }
  if (host.pair_limit.value > 0) {
    cluster_.domains[static_cast<std::size_t>(parent)].pair_limit = host.pair_limit;
  }
  add_group(parent, host, kinds, 0, size, host.inside.size(), size);
}

void TreeBuilder::add_group(int parent, const HostSpec& host, const std::vector<int>& kinds,
                            int first, int last, std::size_t level, int host_size) {
  if (level > 0) {
    const GroupSpec& spec = host.inside[level - 1];
    if (spec.group >= host_size) {
      // The group is the whole host: no domain of its own, but its pairs are the host's pairs.
      if (spec.pair_limit.value > 0) {
        cluster_.domains[static_cast<std::size_t>(parent)].pair_limit = spec.pair_limit;
      }
      add_group(parent, host, kinds, first, last, level - 1, host_size);
      return;
    }
    for (int from = first; from < last; from += spec.group) {
      const int to = std::min(last, from + spec.group);
      const int domain = open(spec.level, numbered(spec.level), parent);
      cluster_.domains.back().pair_limit = spec.pair_limit;
      add_group(domain, host, kinds, from, to, level - 1, host_size);
      close(domain);
      set_uplink(domain, {spec.uplink, spec.lane, spec.link},
                 latency_or_default(spec.latency, spec.link));
    }
    return;
  }
  for (int i = first; i < last; ++i) {
    const DeviceKind& kind =
        cluster_.kinds[static_cast<std::size_t>(kinds[static_cast<std::size_t>(i)])];
    const bool linked = !host.pcie_only && kind.device_link.value > 0;
    Uplink uplink{linked ? kind.device_link : kind.pcie, {}, linked ? kind.link : "pcie"};
    if (host.device_uplink.value > 0) uplink.bandwidth = host.device_uplink;
    if (!host.device_link.empty()) uplink.link = host.device_link;
    const int leaf = open("device", fmt::format("d{}", cluster_.device_count()), parent);
    cluster_.device_kind.push_back(kinds[static_cast<std::size_t>(i)]);
    cluster_.device_domain.push_back(leaf);
    close(leaf);
    set_uplink(leaf, uplink, latency_or_default(host.device_latency, uplink.link));
  }
}

Cluster TreeBuilder::build(const std::vector<RoomPart>& parts) {
  std::int64_t devices = 0, host_count = 0;
  for (const RoomPart& part : parts) {
    for (const HostRun& run : part.hosts) {
      MW_CHECK(run.count > 0 && run.host.device_count() > 0, "an empty run of hosts");
      host_count += run.count;
      devices += static_cast<std::int64_t>(run.count) * run.host.device_count();
    }
  }
  if (devices == 0) throw Error("a cluster needs at least one device");
  if (devices > kMaxDevices) {
    throw Error(fmt::format("{} devices are more than the limit of {}", format_integer(devices),
                            format_integer(kMaxDevices)));
  }
  for (const RoomPart& part : parts) {
    for (const HostRun& run : part.hosts) {
      if (host_count > 1 && run.host.nic_count == 0) {
        throw Error(fmt::format("host {} has no NICs, so it cannot reach the other {} hosts",
                                run.host.name, format_integer(host_count - 1)),
                    "", "give it nics, e.g. nics: {count: 1, gbps: 100, kind: eth}");
      }
    }
  }
  cluster_.device_kind.reserve(static_cast<std::size_t>(devices));
  cluster_.device_domain.reserve(static_cast<std::size_t>(devices));
  cluster_.device_host.reserve(static_cast<std::size_t>(devices));
  cluster_.domains.reserve(static_cast<std::size_t>(devices + devices / 4 + host_count));

  if (host_count == 1) {
    for (const RoomPart& part : parts) {
      if (!part.hosts.empty()) add_host(-1, part.hosts.front().host);
    }
    return std::move(cluster_);
  }
  if (parts.size() == 1) {
    const Hosts hosts = expand(parts[0]);
    const Levels levels = useful_levels(parts[0], hosts.size(), false);
    const bool has_root =
        !levels.empty() && (levels.back().hosts_per == 0 ||
                            static_cast<std::size_t>(levels.back().hosts_per) >= hosts.size());
    if (has_root) {
      add_below(-1, hosts, 0, hosts.size(), levels, levels.size());
      return std::move(cluster_);
    }
  }
  const int root = open("spine", "spine0", -1);
  for (const RoomPart& part : parts) {
    const Hosts hosts = expand(part);
    const Levels levels = useful_levels(part, hosts.size(), true);
    add_below(root, hosts, 0, hosts.size(), levels, levels.size());
  }
  close(root);
  return std::move(cluster_);
}

}  // namespace

int HostSpec::device_count() const {
  std::int64_t count = 0;
  for (const DeviceRun& run : devices) count += run.count;
  MW_CHECK(count <= kMaxDevicesPerHost, "unchecked number of devices in a host");
  return static_cast<int>(count);
}

Cluster build_cluster(std::string name, std::vector<DeviceKind> kinds,
                      const std::vector<RoomPart>& parts) {
  Cluster cluster = TreeBuilder(std::move(name), std::move(kinds)).build(parts);
  drop_unused_kinds(cluster);
  return cluster;
}

void drop_unused_kinds(Cluster& cluster) {
  std::vector<int> renumbered(cluster.kinds.size(), -1);
  std::vector<DeviceKind> used;
  for (int& kind : cluster.device_kind) {
    int& number = renumbered[static_cast<std::size_t>(kind)];
    if (number < 0) {
      number = static_cast<int>(used.size());
      used.push_back(std::move(cluster.kinds[static_cast<std::size_t>(kind)]));
    }
    kind = number;
  }
  cluster.kinds = std::move(used);
}

}  // namespace meshwright
