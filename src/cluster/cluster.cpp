#include "cluster/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "base/spelling.h"
#include "cluster/room.h"
#include "cluster/shorthand.h"
#include "cluster/yaml_text.h"

namespace meshwright {
namespace {

bool names_a_file(std::string_view text) {
  for (const std::string_view suffix : {".yaml", ".yml", ".json"}) {
    if (text.ends_with(suffix)) return true;
  }
  std::error_code error;
  return text.size() < 4096 && text.find('\0') == std::string_view::npos &&
         std::filesystem::is_regular_file(std::filesystem::path(text), error);
}

// The checks below name the domain and the value that break a rule.
class Checker {
 public:
  explicit Checker(const Cluster& cluster) : cluster_(cluster) {}
  void run();

 private:
  void check_kind(const DeviceKind& kind) const;
  void check_sizes() const;
  void check_domain(std::size_t index) const;
  void check_leaves() const;
  void check_hosts() const;

  static void require(bool holds, std::string_view where, std::string message) {
    if (!holds) throw Error(std::move(message), std::string(where));
  }
  // Positive quantities up to an absurd size, or zero when `zero_allowed`.
  static void require_range(double value, double most, bool zero_allowed, std::string_view where,
                            std::string_view what) {
    const bool holds =
        std::isfinite(value) && value <= most && (value > 0 || (zero_allowed && value == 0));
    if (!holds) {
      require(false, in_quotes(where),
              fmt::format("{} is {:g}, which must be {} and at most {:g}", what, value,
                          zero_allowed ? "at least 0" : "more than 0", most));
    }
  }

  const Cluster& cluster_;
};

constexpr double kMaxBytes = 0x1p60, kMaxBandwidth = 1e18, kMaxFlops = 1e21, kMaxLatency = 100;
constexpr int kMaxTreeDepth = 40;

void Checker::check_kind(const DeviceKind& kind) const {
  const std::string& where = kind.name;
  require(!kind.name.empty(), "cluster", "a device kind has no name");
  require_range(kind.memory.value, kMaxBytes, false, where, "memory");
  require_range(kind.memory_bandwidth.value, kMaxBandwidth, false, where, "memory_bandwidth");
  require_range(kind.fp32.value, kMaxFlops, false, where, "fp32");
  require_range(kind.fp64.value, kMaxFlops, true, where, "fp64");
  require_range(kind.tf32.value, kMaxFlops, true, where, "tf32");
  require_range(kind.bf16.value, kMaxFlops, true, where, "bf16");
  require_range(kind.fp16.value, kMaxFlops, true, where, "fp16");
  require_range(kind.fp8.value, kMaxFlops, true, where, "fp8");
  require_range(kind.device_link.value, kMaxBandwidth, true, where, "device_link");
  require_range(kind.pcie.value, kMaxBandwidth, true, where, "pcie");
  require_range(kind.dollars_per_hour, 1e6, true, where, "dollars_per_hour");
}

void Checker::check_sizes() const {
  const std::size_t devices = cluster_.device_kind.size();
  require(devices > 0, "cluster", "a cluster needs at least one device");
  require(devices <= static_cast<std::size_t>(kMaxDevices), "cluster",
          fmt::format("{} devices are more than the limit of {}", devices, kMaxDevices));
  require(cluster_.device_domain.size() == devices && cluster_.device_host.size() == devices,
          "cluster",
          fmt::format("{} devices, but {} leaf domains and {} host numbers", devices,
                      cluster_.device_domain.size(), cluster_.device_host.size()));
  require(!cluster_.domains.empty(), "cluster", "the tree has no root");
  require(cluster_.domains.size() <= 8 * static_cast<std::size_t>(kMaxDevices), "cluster",
          fmt::format("{} domains are too many", cluster_.domains.size()));
  require_range(cluster_.host_memory.value, kMaxBytes, true, "cluster", "host_memory");
  for (std::size_t d = 0; d < devices; ++d) {
    const int kind = cluster_.device_kind[d];
    if (kind < 0 || static_cast<std::size_t>(kind) >= cluster_.kinds.size()) {
      require(false, fmt::format("device {}", d), fmt::format("no device kind {}", kind));
    }
  }
}

void Checker::check_domain(std::size_t index) const {
  const Domain& domain = cluster_.domains[index];
  const auto where = [&] { return "domain " + in_quotes(domain.name); };
  const auto fail = [&](std::string message) { require(false, where(), std::move(message)); };
  if (domain.name.empty()) fail(fmt::format("domain {} has no name", index));
  if (domain.device_count < 1) fail(fmt::format("holds {} devices", domain.device_count));
  const std::int64_t end = std::int64_t{domain.first_device} + domain.device_count;
  if (domain.first_device < 0 || end > cluster_.device_count()) {
    fail(fmt::format("devices {} to {} are not among the {} of the cluster", domain.first_device,
                     end - 1, cluster_.device_count()));
  }
  require_range(domain.pair_limit.value, kMaxBandwidth, true, domain.name, "pair_limit");
  if (index == 0) {
    if (domain.parent != -1) fail(fmt::format("the root has parent {}", domain.parent));
    if (domain.device_count != cluster_.device_count()) {
      fail(fmt::format("the root holds {} of {} devices", domain.device_count,
                       cluster_.device_count()));
    }
    return;
  }
  require_range(domain.uplink.value, kMaxBandwidth, false, domain.name, "uplink bandwidth");
  require_range(domain.lane.value, kMaxBandwidth, true, domain.name, "lane");
  require_range(domain.latency.value, kMaxLatency, true, domain.name, "latency");
  if (domain.parent < 0 || static_cast<std::size_t>(domain.parent) >= index) {
    fail(fmt::format("parent {} does not come before domain {}", domain.parent, index));
  }
  // In preorder, the parent is the domain just before or one of its ancestors, and siblings tile
  // it.
  const Domain& parent = cluster_.domains[static_cast<std::size_t>(domain.parent)];
  const Domain& before = cluster_.domains[index - 1];
  const int expected_first = static_cast<std::size_t>(domain.parent) == index - 1
                                 ? before.first_device
                                 : before.first_device + before.device_count;
  if (domain.first_device != expected_first) {
    fail(fmt::format("starts at device {}, where {} was expected", domain.first_device,
                     expected_first));
  }
  if (domain.first_device < parent.first_device ||
      end > std::int64_t{parent.first_device} + parent.device_count) {
    fail(fmt::format("devices {} to {} are not all in its parent {}", domain.first_device, end - 1,
                     in_quotes(parent.name)));
  }
}

void Checker::check_leaves() const {
  std::size_t leaves = 0;
  std::vector<int> covered(cluster_.domains.size(), 0);
  std::vector<int> depth(cluster_.domains.size(), 0);
  for (std::size_t i = 1; i < depth.size(); ++i) {
    depth[i] = depth[static_cast<std::size_t>(cluster_.domains[i].parent)] + 1;
    if (depth[i] > kMaxTreeDepth) {
      require(false, "domain " + in_quotes(cluster_.domains[i].name),
              fmt::format("more than {} levels deep", kMaxTreeDepth));
    }
  }
  for (std::size_t i = cluster_.domains.size(); i-- > 1;) {
    // Children of an inner domain must hold all of its devices.
    covered[static_cast<std::size_t>(cluster_.domains[i].parent)] +=
        cluster_.domains[i].device_count;
  }
  for (std::size_t i = 0; i < cluster_.domains.size(); ++i) {
    const Domain& domain = cluster_.domains[i];
    if (covered[i] == 0) {
      ++leaves;
      const int leaf_of = cluster_.device_domain[static_cast<std::size_t>(domain.first_device)];
      if (domain.device_count != 1 || leaf_of != static_cast<int>(i)) {
        require(false, "domain " + in_quotes(domain.name),
                fmt::format("a leaf must be exactly one device, this one holds {}",
                            domain.device_count));
      }
    } else if (covered[i] != domain.device_count) {
      require(
          false, "domain " + in_quotes(domain.name),
          fmt::format("its children hold {} of its {} devices", covered[i], domain.device_count));
    }
  }
  require(leaves == cluster_.device_kind.size(), "cluster",
          fmt::format("{} leaves for {} devices", leaves, cluster_.device_kind.size()));
}

void Checker::check_hosts() const {
  int expected = 0;
  for (std::size_t d = 0; d < cluster_.device_host.size(); ++d) {
    const int host = cluster_.device_host[d];
    if (d > 0 && host == cluster_.device_host[d - 1] + 1) ++expected;
    if (host != expected) {
      require(false, fmt::format("device {}", d),
              fmt::format("is in host {}, where {} was expected", host, expected));
    }
  }
  require(cluster_.hosts.size() == static_cast<std::size_t>(expected) + 1, "cluster",
          fmt::format("{} host names for {} hosts", cluster_.hosts.size(), expected + 1));
}

void Checker::run() {
  std::unordered_set<std::string_view> kind_names;
  for (const DeviceKind& kind : cluster_.kinds) {
    check_kind(kind);
    require(kind_names.insert(kind.name).second, in_quotes(kind.name),
            "two device kinds have this name");
  }
  check_sizes();
  for (std::size_t i = 0; i < cluster_.domains.size(); ++i) check_domain(i);
  check_leaves();
  check_hosts();
  std::unordered_set<std::string_view> names;
  names.reserve(cluster_.domains.size());
  for (const Domain& domain : cluster_.domains) {
    if (!names.insert(domain.name).second) {
      throw Error("two domains have this name", "domain " + in_quotes(domain.name),
                  "names of hosts and levels must differ");
    }
  }
}

}  // namespace

Cluster read_cluster(std::string_view text) {
  if (names_a_file(text)) {
    return parse_cluster_yaml(read_file(std::filesystem::path(text), kMaxYamlBytes), text);
  }
  return parse_shorthand(text);
}

void check_cluster(const Cluster& cluster) { Checker(cluster).run(); }

int smallest_domain(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  MW_CHECK(!devices.empty(), "smallest_domain of no devices");
  const auto [low, high] = std::minmax_element(devices.begin(), devices.end());
  MW_CHECK(low->value >= 0 && high->value < cluster.device_count(), "no such device");
  // Domains are ranges of consecutive devices, so the two ends decide.
  int domain = cluster.device_domain[low->index()];
  for (;;) {
    const Domain& candidate = cluster.domains[static_cast<std::size_t>(domain)];
    if (high->value < candidate.first_device + candidate.device_count) return domain;
    domain = candidate.parent;
  }
}

}  // namespace meshwright
