#include "cluster/catalogue.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/embedded.h"
#include "base/error.h"
#include "base/json.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kGibi = 0x1p30, kMicrosPerSecond = 1e6;

struct CatalogueRow {
  DeviceKind kind;
  std::vector<std::string> aliases;
  std::string default_host;
};

// Our own data: whatever is wrong with it is a bug.
Json own_data(std::string_view file) { return parse_json(embedded_file(file), file); }

bool is_word_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "NVIDIA A100-SXM4-80GB", "A100-80GB SXM" and "a100_sxm_80" all become "80 a100 sxm": the words
// without vendor and unit, sorted.
std::string name_key(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, 200)) {
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  // A remark in parentheses at the end says nothing about the device.
  const auto remark = text.find('(');
  if (remark != std::string::npos && remark > 0 && text.back() == ')') text.resize(remark);
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (is_word_character(c)) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  constexpr std::string_view kIgnored[] = {"nvidia",  "amd",      "google", "cloud", "tesla",
                                           "geforce", "instinct", "gpu",    "oam",   ""};
  std::vector<std::string> kept;
  for (std::string& word : words) {
    if (std::find(std::begin(kIgnored), std::end(kIgnored), word) != std::end(kIgnored)) continue;
    if (word.size() > 2 && word.ends_with("gb") &&
        all_digits(std::string_view(word).substr(0, word.size() - 2))) {
      word.resize(word.size() - 2);
    }
    if (word.size() == 4 && word.starts_with("sxm")) word = "sxm";
    // "8xh200": the count of a host.
    const auto x = word.find('x');
    if (kept.empty() && x != std::string::npos && x + 1 < word.size() &&
        all_digits(std::string_view(word).substr(0, x))) {
      word.erase(0, x + 1);
    }
    kept.push_back(std::move(word));
  }
  std::sort(kept.begin(), kept.end());
  return fmt::format("{}", fmt::join(kept, " "));
}

std::vector<CatalogueRow> load_devices() {
  std::vector<CatalogueRow> rows;
  const Json data = own_data("devices.json");
  for (const Json& row : data.at("devices")) {
    const auto rate = [&](const char* key) {
      return FlopsPerSecond(row.at(key).get<double>() * kTera);
    };
    const auto bandwidth = [&](const char* key) {
      return BytesPerSecond(row.at(key).get<double>() * kGiga);
    };
    CatalogueRow entry;
    DeviceKind& kind = entry.kind;
    kind.name = row.at("name").get<std::string>();
    kind.vendor = row.at("vendor").get<std::string>();
    kind.architecture = row.at("architecture").get<std::string>();
    kind.memory = Bytes(row.at("memory_gib").get<double>() * kGibi);
    kind.memory_bandwidth = bandwidth("memory_bandwidth_gb_per_s");
    kind.fp32 = rate("fp32_tflops");
    kind.tf32 = rate("tf32_tflops");
    kind.bf16 = rate("bf16_tflops");
    kind.fp16 = rate("fp16_tflops");
    kind.fp8 = rate("fp8_tflops");
    kind.link = row.at("link").get<std::string>();
    kind.device_link = bandwidth("device_link_gb_per_s");
    kind.pcie = bandwidth("pcie_gb_per_s");
    kind.dollars_per_hour = row.at("dollars_per_hour").get<double>();
    entry.aliases = row.at("aliases").get<std::vector<std::string>>();
    entry.default_host = row.at("default_host").get<std::string>();
    rows.push_back(std::move(entry));
  }
  std::sort(rows.begin(), rows.end(),
            [](const CatalogueRow& a, const CatalogueRow& b) { return a.kind.name < b.kind.name; });
  return rows;
}

const std::vector<CatalogueRow>& catalogue_rows() {
  static const std::vector<CatalogueRow> kRows = load_devices();
  return kRows;
}

// From name_key of every name and alias to its row.
const std::map<std::string, std::size_t>& device_index() {
  static const std::map<std::string, std::size_t> kIndex = [] {
    std::map<std::string, std::size_t> index;
    const auto& rows = catalogue_rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<std::string> names = rows[i].aliases;
      names.push_back(rows[i].kind.name);
      for (const std::string& name : names) {
        MW_CHECK(index.emplace(name_key(name), i).second,
                 fmt::format("data/devices.json has two entries for \"{}\"", name));
      }
    }
    return index;
  }();
  return kIndex;
}

HostPreset load_host(const Json& row) {
  const auto bandwidth = [](const Json& json, const char* key) {
    return BytesPerSecond(json.value(key, 0.0) * kGiga);
  };
  HostPreset preset;
  preset.name = row.at("name").get<std::string>();
  preset.aliases = row.value("aliases", std::vector<std::string>());
  preset.device = row.value("device", std::string());
  preset.summary = row.at("summary").get<std::string>();
  preset.unit_hosts = row.value("unit_hosts", 1);
  preset.rack_hosts = row.value("rack_hosts", 32);
  preset.island_devices = row.value("island_devices", 0);
  preset.island.level = row.value("island_level", std::string());
  preset.island.joins_devices = true;
  preset.island.pair_limit = bandwidth(row, "island_pair_limit_gb_per_s");
  HostSpec& host = preset.host;
  host.devices = {{0, row.at("devices").get<int>()}};
  for (const Json& json : row.value("inside", Json::array())) {
    GroupSpec group;
    group.level = json.at("level").get<std::string>();
    group.group = json.at("group").get<int>();
    group.link = json.at("link").get<std::string>();
    group.uplink = bandwidth(json, "uplink_gb_per_s");
    group.pair_limit = bandwidth(json, "pair_limit_gb_per_s");
    group.latency = find_link(group.link).latency;
    host.inside.push_back(std::move(group));
  }
  host.pair_limit = bandwidth(row, "pair_limit_gb_per_s");
  host.nic_count = row.at("nic_count").get<int>();
  host.nic = BytesPerSecond(row.at("nic_gbps").get<double>() * kGiga / 8);
  host.nic_link = row.at("nic_link").get<std::string>();
  host.ram = Bytes(row.at("ram_gib").get<double>() * kGibi);
  return preset;
}

std::vector<HostPreset> load_hosts() {
  std::vector<HostPreset> presets;
  const Json data = own_data("hosts.json");
  for (const Json& row : data.at("presets")) presets.push_back(load_host(row));
  for (const Json& row : data.at("generic")) presets.push_back(load_host(row));
  return presets;
}

const std::vector<LinkKind>& link_kinds() {
  static const std::vector<LinkKind> kLinks = [] {
    std::vector<LinkKind> links;
    const Json data = own_data("links.json");
    for (const Json& row : data.at("links")) {
      links.push_back({row.at("name").get<std::string>(),
                       Seconds(row.at("latency_us").get<double>() / kMicrosPerSecond),
                       Seconds(row.at("tier_latency_us").get<double>() / kMicrosPerSecond)});
    }
    return links;
  }();
  return kLinks;
}

}  // namespace

const std::vector<DeviceKind>& device_catalogue() {
  static const std::vector<DeviceKind> kKinds = [] {
    std::vector<DeviceKind> kinds;
    for (const CatalogueRow& row : catalogue_rows()) kinds.push_back(row.kind);
    return kinds;
  }();
  return kKinds;
}

const DeviceKind& find_device(std::string_view name) {
  const auto found = device_index().find(name_key(name));
  if (found != device_index().end()) return device_catalogue()[found->second];
  std::vector<std::string> names;
  for (const CatalogueRow& row : catalogue_rows()) {
    names.push_back(row.kind.name);
    names.insert(names.end(), row.aliases.begin(), row.aliases.end());
  }
  throw Error(
      fmt::format("unknown device {}", in_quotes(name)), "",
      fmt::format("the nearest ones are {}", fmt::join(nearest_names(name, names, 4), ", ")));
}

const LinkKind& find_link(std::string_view name) {
  for (const LinkKind& link : link_kinds()) {
    if (link.name == name) return link;
  }
  throw Error(fmt::format("unknown kind of link {}", in_quotes(name)), "",
              fmt::format("one of {}", fmt::join(link_names(), ", ")));
}

std::vector<std::string> link_names() {
  std::vector<std::string> names;
  for (const LinkKind& link : link_kinds()) names.push_back(link.name);
  return names;
}

const std::vector<HostPreset>& host_presets() {
  static const std::vector<HostPreset> kPresets = load_hosts();
  return kPresets;
}

const HostPreset* find_preset(std::string_view name) {
  std::string lower(name.substr(0, 100));
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const HostPreset& preset : host_presets()) {
    if (preset.device.empty()) continue;
    if (preset.name == lower) return &preset;
    if (std::find(preset.aliases.begin(), preset.aliases.end(), lower) != preset.aliases.end()) {
      return &preset;
    }
  }
  return nullptr;
}

const HostPreset& default_host(const DeviceKind& kind) {
  for (const CatalogueRow& row : catalogue_rows()) {
    if (row.kind.name != kind.name) continue;
    for (const HostPreset& preset : host_presets()) {
      if (preset.name == row.default_host) return preset;
    }
  }
  MW_CHECK(false, fmt::format("no default host for {}", kind.name));
  return host_presets().front();
}

std::vector<std::string> known_hardware_names() {
  std::vector<std::string> names;
  for (const HostPreset& preset : host_presets()) {
    if (!preset.device.empty()) names.push_back(preset.name);
  }
  for (const CatalogueRow& row : catalogue_rows()) {
    names.push_back(row.kind.name);
    names.insert(names.end(), row.aliases.begin(), row.aliases.end());
  }
  return names;
}

DeviceKind cpu_share(int devices) {
  DeviceKind kind = find_device("cpu");
  const double cores = std::max(1.0, static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)));
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  const double share = cores / devices;
  kind.fp32 *= share;
  kind.bf16 *= share;
  kind.fp16 *= share;
  kind.memory_bandwidth *= share;
  if (memory > 0) kind.memory = Bytes(memory / devices);
  return kind;
}

const std::vector<ClusterPreset>& cluster_presets() {
  static const std::vector<ClusterPreset> kPresets = [] {
    std::vector<ClusterPreset> presets;
    for (const HostPreset& preset : host_presets()) {
      if (preset.device.empty()) continue;
      presets.push_back({preset.name, preset.device, preset.host.device_count(), preset.summary});
    }
    return presets;
  }();
  return kPresets;
}

}  // namespace meshwright
