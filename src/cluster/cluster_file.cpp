// Reads cluster files (docs/cluster_format.md). The `hosts:` form is read here into a RoomPart; the
// `tree:` form, which says every domain, is in cluster_tree.cpp.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/format.h"
#include "base/spelling.h"
#include "cluster/catalogue.h"
#include "cluster/cluster.h"
#include "cluster/cluster_tree.h"
#include "cluster/kind_file.h"
#include "cluster/room.h"
#include "cluster/yaml_fields.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxEntries = 4096;
constexpr int kMaxGbps = 100000;
const BytesPerSecond kNone{0};
const Seconds kByLink{-1};

class FileReader {
 public:
  explicit FileReader(std::string_view source) : source_(source), kinds_(source) {}
  Cluster read(std::string_view text);

 private:
  HostRun read_host(const YAML::Node& node);
  void read_devices(const YamlFields& fields, HostSpec& host);
  void read_fabric(const YamlFields& fields, HostSpec& host);
  void read_fabric_list(const YamlFields& fields, HostSpec& host);
  void read_nics(const YAML::Node& node, HostSpec& host);
  void read_levels(const YamlFields& fields, std::vector<NetworkLevel>& levels);
  void apply_links(const YamlFields& fields, Cluster& cluster);
  // The name of a kind of link, or "" when the key is absent.
  std::string link_of(const YamlFields& fields, std::string_view key);

  std::string source_;
  KindTable kinds_;
  // The island of a preset that joins devices of several hosts.
  std::vector<NetworkLevel> preset_levels_;
};

std::string FileReader::link_of(const YamlFields& fields, std::string_view key) {
  if (!fields.has(key)) return "";
  std::string name = fields.text(key);
  try {
    find_link(name);
  } catch (const Error& error) {
    fields.fail_at(key, error.message(), error.hint());
  }
  return name;
}

void FileReader::read_devices(const YamlFields& fields, HostSpec& host) {
  const YAML::Node devices = fields.at("devices");
  std::vector<YAML::Node> runs;
  if (devices.IsSequence()) {
    runs = fields.list("devices");
    if (runs.size() > static_cast<std::size_t>(kMaxDevicesPerHost)) {
      fields.fail_at("devices", "more entries than a host can have devices");
    }
  } else {
    runs.push_back(devices);
  }
  int total = 0;
  std::vector<std::pair<YAML::Node, int>> kind_and_count;
  for (const YAML::Node& run : runs) {
    const YamlFields entry(run, source_, "an entry of devices", {"kind", "count"});
    const int count = entry.count_or("count", 1, kMaxDevicesPerHost, 1);
    total += count;
    if (total > kMaxDevicesPerHost) {
      entry.fail(fmt::format("more than {} devices in a host", format_integer(kMaxDevicesPerHost)));
    }
    kind_and_count.emplace_back(entry.at("kind"), count);
  }
  host.devices.clear();
  for (const auto& [kind, count] : kind_and_count) {
    host.devices.push_back({kinds_.use(kind, total), count});
  }
}

void FileReader::read_fabric_list(const YamlFields& fields, HostSpec& host) {
  int previous = 1;
  bool first = true;
  for (const YAML::Node& node : fields.list("fabric")) {
    const YamlFields entry(node, source_, "a level of fabric",
                           {"level", "group", "uplink", "link", "lane", "pair_limit", "latency"});
    const std::string level = entry.name("level");
    if (level == "device") {
      if (!first) entry.fail("the level device must come first");
      if (entry.has("group") || entry.has("pair_limit") || entry.has("lane")) {
        entry.fail("the level device has only the keys level, uplink, link and latency");
      }
      host.device_uplink = entry.bandwidth_or("uplink", kNone);
      host.device_link = link_of(entry, "link");
      host.device_latency = entry.latency_or("latency", kByLink);
      first = false;
      continue;
    }
    first = false;
    if (host.inside.size() == 8) entry.fail("more than 8 levels inside a host");
    GroupSpec group;
    group.level = level;
    group.group = entry.count("group", 2, kMaxDevicesPerHost);
    if (group.group <= previous) {
      entry.fail_at("group",
                    fmt::format("groups of {} cannot hold groups of {}", group.group, previous),
                    "list the innermost level first");
    }
    if (group.group % previous != 0) {
      entry.fail_at("group", fmt::format("groups of {} cannot be made of groups of {}", group.group,
                                         previous));
    }
    previous = group.group;
    entry.at("uplink");
    entry.at("link");
    group.uplink = entry.bandwidth_or("uplink", kNone);
    group.link = link_of(entry, "link");
    group.lane = entry.bandwidth_or("lane", kNone);
    group.pair_limit = entry.bandwidth_or("pair_limit", kNone);
    group.latency = entry.latency_or("latency", kByLink);
    host.inside.push_back(std::move(group));
  }
}

void FileReader::read_fabric(const YamlFields& fields, HostSpec& host) {
  host.inside.clear();
  if (fields.at("fabric").IsSequence()) {
    read_fabric_list(fields, host);
    return;
  }
  const std::string fabric = fields.text("fabric");
  const auto each_kind = [&](auto&& check) {
    for (const DeviceRun& run : host.devices) check(kinds_[run.kind]);
  };
  if (fabric == "full") {
    each_kind([&](const DeviceKind& kind) {
      if (kind.device_link.value == 0) {
        fields.fail_at("fabric", fmt::format("{} has no link between devices", kind.name),
                       "fabric: pcie, or give the kind a device_link");
      }
    });
  } else if (fabric == "pairs") {
    BytesPerSecond uplink;
    each_kind([&](const DeviceKind& kind) {
      if (kind.device_link.value == 0 || kind.pcie.value == 0) {
        fields.fail_at(
            "fabric", fmt::format("pairs need a device_link and pcie, which {} has not", kind.name),
            "define the kind with like: and device_link:, link: nvlink");
      }
      uplink = kind.pcie * 2;
    });
    GroupSpec pair;
    pair.level = "pair";
    pair.group = 2;
    pair.link = "pcie";
    pair.uplink = uplink;
    host.inside.push_back(std::move(pair));
  } else if (fabric == "pcie") {
    host.pcie_only = true;
    each_kind([&](const DeviceKind& kind) {
      if (kind.pcie.value == 0) {
        fields.fail_at("fabric", fmt::format("{} has no pcie", kind.name));
      }
    });
  } else {
    fields.fail_at("fabric", fmt::format("unknown fabric {}", in_quotes(fabric)),
                   "full, pairs, pcie or a list of levels");
  }
}

void FileReader::read_nics(const YAML::Node& node, HostSpec& host) {
  const YamlFields nics(node, source_, "nics", {"count", "gbps", "kind", "latency"});
  host.nic_count = nics.count_or("count", 1, kMaxNicsPerHost, 1);
  host.nic = BytesPerSecond(nics.number("gbps", 0.001, kMaxGbps) * 1e9 / 8);
  host.nic_link = nics.has("kind") ? link_of(nics, "kind") : "eth";
  host.nic_latency = nics.latency_or("latency", kByLink);
}

HostRun FileReader::read_host(const YAML::Node& node) {
  const YamlFields fields(
      node, source_, "a host",
      {"name", "count", "preset", "devices", "fabric", "pair_limit", "nics", "ram"});
  HostRun run;
  HostSpec& host = run.host;
  run.count = fields.count_or("count", 1, kMaxDevices, 1);
  if (fields.has("preset")) {
    if (fields.has("devices") || fields.has("fabric") || fields.has("pair_limit")) {
      fields.fail("a host with a preset cannot have devices, fabric or pair_limit of its own",
                  "nics and ram may be given");
    }
    const std::string name = fields.text("preset");
    const HostPreset* preset = find_preset(name);
    if (preset == nullptr) {
      std::vector<std::string> names;
      for (const ClusterPreset& known : cluster_presets()) names.emplace_back(known.name);
      fields.fail_at(
          "preset", fmt::format("unknown preset {}", in_quotes(name)),
          fmt::format("the nearest ones are {}", fmt::join(nearest_names(name, names, 4), ", ")));
    }
    host = preset->host;
    host.devices.front().kind = kinds_.use(YAML::Node(preset->device), host.device_count());
    if (preset->island_devices > 0) {
      NetworkLevel island = preset->island;
      island.hosts_per = std::max(1, preset->island_devices / host.device_count());
      preset_levels_.push_back(std::move(island));
      if (run.count > kMaxDevices / preset->unit_hosts) {
        fields.fail_at("count", fmt::format("more than {} devices", format_integer(kMaxDevices)));
      }
      run.count *= preset->unit_hosts;
    }
  } else {
    read_devices(fields, host);
    if (fields.has("fabric")) read_fabric(fields, host);
    host.pair_limit = fields.bandwidth_or("pair_limit", kNone);
  }
  if (fields.has("name")) {
    host.name = fields.name("name");
    host.numbered = fields.has("count") || run.count > 1;
  }
  if (fields.has("nics")) read_nics(fields.at("nics"), host);
  host.ram = fields.bytes_or("ram", host.ram);
  for (const DeviceRun& device : host.devices) {
    const DeviceKind& kind = kinds_[device.kind];
    const bool attached = host.device_uplink.value > 0 || kind.pcie.value > 0 ||
                          (!host.pcie_only && kind.device_link.value > 0);
    if (!attached) fields.fail(fmt::format("{} is attached by nothing", kind.name));
  }
  return run;
}

void FileReader::read_levels(const YamlFields& fields, std::vector<NetworkLevel>& levels) {
  const std::vector<YAML::Node> nodes = fields.list("levels");
  if (nodes.size() > 8) fields.fail_at("levels", "more than 8 levels");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const YamlFields entry(nodes[i], source_, "a level",
                           {"level", "hosts_per", "joins", "oversubscription", "uplink", "lane",
                            "pair_limit", "link", "latency"});
    NetworkLevel level;
    level.level = entry.name("level");
    if (level.level == "host" || level.level == "device") {
      entry.fail_at("level", fmt::format("a level cannot be called {}", level.level),
                    "levels are above the hosts: rack, pod, spine");
    }
    if (entry.has("hosts_per")) {
      level.hosts_per = entry.count("hosts_per", 1, kMaxDevices);
      if (!levels.empty() && level.hosts_per <= levels.back().hosts_per) {
        entry.fail_at("hosts_per",
                      fmt::format("{} with {} hosts cannot hold {} with {}", level.level,
                                  level.hosts_per, levels.back().level, levels.back().hosts_per),
                      "list the innermost level first");
      }
    } else if (i + 1 < nodes.size()) {
      entry.fail("only the last level may leave out hosts_per, and holds everything");
    } else {
      for (const char* key : {"oversubscription", "uplink", "lane", "link", "latency"}) {
        if (entry.has(key)) {
          entry.fail_at(key,
                        fmt::format("{} is the top and has no uplink, so no {}", level.level, key),
                        "give it hosts_per, or put it on the level below");
        }
      }
    }
    if (entry.has("joins")) {
      const std::string joins = entry.text("joins");
      if (joins != "devices" && joins != "hosts") {
        entry.fail_at("joins", fmt::format("joins is {}", in_quotes(joins)), "devices or hosts");
      }
      level.joins_devices = joins == "devices";
      if (level.joins_devices && !levels.empty()) {
        entry.fail_at("joins", "only the first level can join devices");
      }
    }
    if (entry.has("oversubscription") && entry.has("uplink")) {
      entry.fail_at("uplink", "give either oversubscription or uplink");
    }
    level.oversubscription = entry.number_or("oversubscription", 1, 1000, 1);
    level.uplink = entry.bandwidth_or("uplink", kNone);
    level.lane = entry.bandwidth_or("lane", kNone);
    level.pair_limit = entry.bandwidth_or("pair_limit", kNone);
    level.link = link_of(entry, "link");
    level.latency = entry.latency_or("latency", kByLink);
    levels.push_back(std::move(level));
  }
}

void FileReader::apply_links(const YamlFields& fields, Cluster& cluster) {
  const std::vector<YAML::Node> nodes = fields.list("links");
  if (nodes.empty()) return;
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < cluster.domains.size(); ++i) by_name[cluster.domains[i].name] = i;
  for (const YAML::Node& node : nodes) {
    const YamlFields entry(node, source_, "a link",
                           {"domain", "uplink", "lane", "pair_limit", "link", "latency"});
    const std::string name = entry.text("domain");
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      std::vector<std::string> names;
      for (std::size_t i = 0; i < std::min<std::size_t>(cluster.domains.size(), 5000); ++i) {
        names.push_back(cluster.domains[i].name);
      }
      entry.fail_at(
          "domain", fmt::format("no domain is called {}", in_quotes(name)),
          fmt::format("the nearest ones are {}", fmt::join(nearest_names(name, names, 4), ", ")));
    }
    Domain& domain = cluster.domains[found->second];
    if (domain.parent < 0) {
      for (const char* key : {"uplink", "lane", "link", "latency"}) {
        if (entry.has(key))
          entry.fail_at(key, fmt::format("{} is the top and has no uplink", name));
      }
    }
    const BytesPerSecond before = domain.uplink;
    domain.uplink = entry.bandwidth_or("uplink", domain.uplink);
    // A slower uplink slows each lane of it alike, unless the file says otherwise.
    if (domain.uplink != before) domain.lane *= domain.uplink / before;
    domain.lane = entry.bandwidth_or("lane", domain.lane);
    domain.pair_limit = entry.bandwidth_or("pair_limit", domain.pair_limit);
    domain.latency = entry.latency_or("latency", domain.latency);
    if (entry.has("link")) domain.link = link_of(entry, "link");
  }
}

Cluster FileReader::read(std::string_view text) {
  const YAML::Node document = load_yaml(text, source_);
  const YamlFields fields(document, source_, "a cluster file",
                          {"version", "name", "kinds", "hosts", "levels", "links", "tree"});
  if (fields.has("version")) fields.count("version", 1, 1);
  const std::string name = fields.text_or("name", source_);
  if (fields.has("name") && (name.empty() || name.size() > 200))
    fields.fail_at("name", "name has 1 to 200 characters");
  const std::vector<YAML::Node> kinds = fields.list("kinds");
  if (kinds.size() > kMaxEntries) {
    fields.fail_at("kinds", fmt::format("more than {} device kinds", kMaxEntries));
  }
  for (const YAML::Node& kind : kinds) kinds_.define(kind);

  Cluster cluster;
  if (fields.has("tree")) {
    for (const char* key : {"hosts", "levels"}) {
      if (fields.has(key)) fields.fail_at(key, fmt::format("{} and tree exclude each other", key));
    }
    cluster = read_cluster_tree(fields.at("tree"), source_, name, kinds_);
  } else {
    fields.at("hosts");
    const std::vector<YAML::Node> hosts = fields.list("hosts");
    if (hosts.size() > kMaxEntries) {
      fields.fail_at("hosts", fmt::format("more than {} entries of hosts", kMaxEntries),
                     "use count");
    }
    RoomPart room;
    for (const YAML::Node& host : hosts) room.hosts.push_back(read_host(host));
    if (!preset_levels_.empty() && room.hosts.size() > 1) {
      fields.fail_at("hosts", "a preset that joins the devices of several hosts must be alone",
                     "describe its hosts with devices:, and levels: with joins: devices");
    }
    room.levels = preset_levels_;
    read_levels(fields, room.levels);
    try {
      cluster = build_cluster(name, kinds_.kinds(), {room});
    } catch (const Error& error) {
      fields.fail_at("hosts", error.message(), error.hint());
    }
  }
  apply_links(fields, cluster);
  try {
    check_cluster(cluster);
  } catch (const Error& error) {
    throw error.within(source_);
  }
  return cluster;
}

}  // namespace

Cluster parse_cluster_yaml(std::string_view text, std::string_view source) {
  return FileReader(source).read(text);
}

}  // namespace meshwright
