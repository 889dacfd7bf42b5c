// A cluster spelled out for programs that read JSON and no YAML: numbers instead of quantities with
// units, and nothing folded by a count.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cluster/cluster.h"

namespace meshwright {
namespace {

// File names, and so cluster names, need not be UTF-8.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json kind_row(const DeviceKind& kind) {
  Json row;
  row["name"] = kind.name;
  row["vendor"] = kind.vendor;
  row["architecture"] = kind.architecture;
  row["memory"] = kind.memory.value;
  row["memory_bandwidth"] = kind.memory_bandwidth.value;
  row["fp32"] = kind.fp32.value;
  row["fp64"] = kind.fp64.value;
  row["tf32"] = kind.tf32.value;
  row["bf16"] = kind.bf16.value;
  row["fp16"] = kind.fp16.value;
  row["fp8"] = kind.fp8.value;
  row["link"] = kind.link;
  row["device_link"] = kind.device_link.value;
  row["pcie"] = kind.pcie.value;
  row["dollars_per_hour"] = kind.dollars_per_hour;
  return row;
}

Json domain_row(const Domain& domain) {
  Json row;
  row["name"] = domain.name;
  row["level"] = domain.level;
  row["parent"] = domain.parent;
  row["first_device"] = domain.first_device;
  row["device_count"] = domain.device_count;
  row["link"] = domain.link;
  row["uplink"] = domain.uplink.value;
  row["lane"] = domain.lane.value;
  row["latency"] = domain.latency.value;
  row["pair_limit"] = domain.pair_limit.value;
  return row;
}

// Appends `"key": [` and one row per line.
void add_rows(std::string& text, std::string_view key, std::size_t count, const auto& row_at) {
  text += fmt::format(",\n \"{}\": [", key);
  for (std::size_t i = 0; i < count; ++i) {
    text += i == 0 ? "\n  " : ",\n  ";
    text += dump(row_at(i));
  }
  text += "]";
}

}  // namespace

std::string list_cluster(const Cluster& cluster) {
  std::string text = fmt::format("{{\"version\": 1,\n \"name\": {},\n \"host_memory\": {}",
                                 dump(cluster.name), dump(cluster.host_memory.value));
  add_rows(text, "kinds", cluster.kinds.size(),
           [&](std::size_t i) { return kind_row(cluster.kinds[i]); });
  std::vector<Json> hosts(cluster.hosts.size());
  for (std::size_t d = 0; d < cluster.device_host.size(); ++d) {
    const auto h = static_cast<std::size_t>(cluster.device_host[d]);
    Json& host = hosts[h];
    if (host.is_null())
      host = {{"name", cluster.hosts[h]}, {"first_device", d}, {"device_count", 0}};
    host["device_count"] = host["device_count"].get<int>() + 1;
  }
  add_rows(text, "hosts", hosts.size(), [&](std::size_t i) { return hosts[i]; });
  add_rows(text, "devices", cluster.device_kind.size(), [&](std::size_t i) {
    return Json{{"kind", cluster.kinds[static_cast<std::size_t>(cluster.device_kind[i])].name},
                {"host", cluster.device_host[i]},
                {"domain", cluster.device_domain[i]}};
  });
  add_rows(text, "domains", cluster.domains.size(),
           [&](std::size_t i) { return domain_row(cluster.domains[i]); });
  return text + "}\n";
}

}  // namespace meshwright
