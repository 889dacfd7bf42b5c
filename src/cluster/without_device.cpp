#include "cluster/without_device.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {

Cluster without_device(const Cluster& cluster, DeviceId device) {
  const auto lost = device.index();
  if (lost >= cluster.device_kind.size()) {
    throw Error(fmt::format("{} has no device {}", cluster.name, device.value));
  }
  if (cluster.device_count() == 1) {
    throw Error(fmt::format("{} has only one device", cluster.name));
  }
  const auto covers = [&](const Domain& d) {
    return d.first_device <= device.value && device.value < d.first_device + d.device_count;
  };
  Cluster rest = cluster;
  rest.domains.clear();
  std::vector<int> moved(cluster.domains.size(), -1);
  for (std::size_t i = 0; i < cluster.domains.size(); ++i) {
    Domain d = cluster.domains[i];
    if (covers(d)) {
      if (d.device_count == 1) continue;
      --d.device_count;
    } else if (d.first_device > device.value) {
      --d.first_device;
    }
    if (d.parent >= 0) d.parent = moved[static_cast<std::size_t>(d.parent)];
    moved[i] = static_cast<int>(rest.domains.size());
    rest.domains.push_back(std::move(d));
  }
  const auto at = static_cast<std::ptrdiff_t>(lost);
  rest.device_kind.erase(rest.device_kind.begin() + at);
  rest.device_domain.erase(rest.device_domain.begin() + at);
  rest.device_host.erase(rest.device_host.begin() + at);
  for (int& domain : rest.device_domain) domain = moved[static_cast<std::size_t>(domain)];

  const int host = cluster.device_host[lost];
  bool host_left = false;
  for (int h : rest.device_host) host_left = host_left || h == host;
  if (!host_left) {
    rest.hosts.erase(rest.hosts.begin() + host);
    for (int& h : rest.device_host) h -= h > host ? 1 : 0;
  }
  // A kind that no device is of any more.
  const int kind = cluster.device_kind[lost];
  bool kind_left = false;
  for (int k : rest.device_kind) kind_left = kind_left || k == kind;
  if (!kind_left) {
    rest.kinds.erase(rest.kinds.begin() + kind);
    for (int& k : rest.device_kind) k -= k > kind ? 1 : 0;
  }
  check_cluster(rest);
  return rest;
}

}  // namespace meshwright
