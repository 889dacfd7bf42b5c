// The `tree:` form of a cluster file: every domain as it is, equal siblings once with a count.
// Names that count up through the file (host0, host1, ...) are written as their common beginning
// (`names: host`), so that equal siblings stay equal; any other name is written in full (`name:
// login-box`).

#include "cluster/cluster_tree.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "base/parse_units.h"
#include "base/spelling.h"
#include "cluster/catalogue.h"
#include "cluster/room.h"
#include "cluster/subtree.h"

namespace meshwright {
namespace {

constexpr int kMaxTreeDepth = 30;

// One entry of the file: `count` equal siblings.
struct TreeNode {
  std::string name;
  bool numbered = false;
  int count = 1;
  std::string level;
  std::string link;
  BytesPerSecond uplink, lane, pair_limit;
  Seconds latency;
  int kind = -1;  ///< Of a leaf.
  std::vector<TreeNode> children;
};

class TreeReader {
 public:
  TreeReader(std::string_view source, KindTable& kinds) : source_(source), kinds_(kinds) {}
  Cluster read(const YAML::Node& node, std::string name);

 private:
  TreeNode read_node(const YAML::Node& node, int depth);
  void read_hosts(const YamlFields& fields);
  void emit(const TreeNode& node, int parent);
  std::string numbered(const std::string& prefix, std::map<std::string, int>& next) {
    return fmt::format("{}{}", prefix, next[prefix]++);
  }
  // Reads `name`, or `names` with `count`.
  static void read_name(const YamlFields& fields, std::string& name, bool& is_numbered, int& count);

  std::string source_;
  KindTable& kinds_;
  Cluster cluster_;
  std::map<std::string, int> next_domain_, next_host_;
};

void TreeReader::read_name(const YamlFields& fields, std::string& name, bool& is_numbered,
                           int& count) {
  if (fields.has("name") == fields.has("names")) {
    fields.fail("give either name or names", "names counts up: host0, host1, ...");
  }
  is_numbered = fields.has("names");
  name = fields.name(is_numbered ? "names" : "name");
  if (!is_numbered && fields.has("count")) {
    fields.fail_at("count", "count needs names, which count up");
  }
  count = fields.count_or("count", 1, kMaxDevices, 1);
}

TreeNode TreeReader::read_node(const YAML::Node& yaml, int depth) {
  const YamlFields fields(yaml, source_, "a domain",
                          {"name", "names", "count", "level", "kind", "link", "uplink", "lane",
                           "pair_limit", "latency", "children"});
  if (depth > kMaxTreeDepth) fields.fail(fmt::format("more than {} levels deep", kMaxTreeDepth));
  TreeNode node;
  read_name(fields, node.name, node.numbered, node.count);
  node.level = fields.name("level");
  if (depth == 0) {
    if (node.count != 1) fields.fail_at("count", "there is one root");
  } else {
    fields.at("uplink");
    node.link = fields.text("link");
    try {
      find_link(node.link);
    } catch (const Error& error) {
      fields.fail_at("link", error.message(), error.hint());
    }
  }
  node.uplink = fields.bandwidth_or("uplink", BytesPerSecond(0));
  node.lane = fields.bandwidth_or("lane", BytesPerSecond(0));
  node.pair_limit = fields.bandwidth_or("pair_limit", BytesPerSecond(0));
  node.latency = fields.latency_or("latency", Seconds(0));
  if (fields.has("kind") == fields.has("children")) {
    fields.fail("give either kind (a device) or children");
  }
  if (fields.has("kind")) {
    node.kind = kinds_.use(fields.at("kind"), 1);
  } else {
    for (const YAML::Node& child : fields.list("children")) {
      node.children.push_back(read_node(child, depth + 1));
    }
  }
  return node;
}

void TreeReader::emit(const TreeNode& node, int parent) {
  for (int i = 0; i < node.count; ++i) {
    if (cluster_.device_count() >= kMaxDevices) {
      throw Error(fmt::format("more than {} devices", format_integer(kMaxDevices)), source_);
    }
    const auto index = cluster_.domains.size();
    Domain domain;
    domain.name = node.numbered ? numbered(node.name, next_domain_) : node.name;
    domain.level = node.level;
    domain.link = node.link;
    domain.parent = parent;
    domain.first_device = cluster_.device_count();
    domain.uplink = node.uplink;
    domain.lane = node.lane;
    domain.pair_limit = node.pair_limit;
    domain.latency = node.latency;
    cluster_.domains.push_back(std::move(domain));
    if (node.kind >= 0) {
      cluster_.device_kind.push_back(node.kind);
      cluster_.device_domain.push_back(static_cast<int>(index));
    }
    for (const TreeNode& child : node.children) emit(child, static_cast<int>(index));
    Domain& closed = cluster_.domains[index];
    closed.device_count = cluster_.device_count() - closed.first_device;
  }
}

void TreeReader::read_hosts(const YamlFields& fields) {
  fields.at("hosts");
  for (const YAML::Node& yaml : fields.list("hosts")) {
    const YamlFields entry(yaml, source_, "a host of the tree",
                           {"name", "names", "count", "devices"});
    std::string name;
    bool is_numbered = false;
    int count = 1;
    read_name(entry, name, is_numbered, count);
    const int devices = entry.count("devices", 1, kMaxDevices);
    for (int i = 0; i < count; ++i) {
      if (cluster_.device_host.size() + static_cast<std::size_t>(devices) >
          static_cast<std::size_t>(kMaxDevices)) {
        entry.fail(fmt::format("more than {} devices", format_integer(kMaxDevices)));
      }
      cluster_.device_host.insert(cluster_.device_host.end(), static_cast<std::size_t>(devices),
                                  static_cast<int>(cluster_.hosts.size()));
      cluster_.hosts.push_back(is_numbered ? numbered(name, next_host_) : name);
    }
  }
}

Cluster TreeReader::read(const YAML::Node& yaml, std::string name) {
  const YamlFields fields(yaml, source_, "tree", {"host_memory", "hosts", "root"});
  cluster_.name = std::move(name);
  cluster_.host_memory = fields.bytes_or("host_memory", Bytes(0));
  const TreeNode root = read_node(fields.at("root"), 0);
  cluster_.kinds = kinds_.kinds();
  emit(root, -1);
  read_hosts(fields);
  if (cluster_.device_host.size() != cluster_.device_kind.size()) {
    fields.fail_at("hosts", fmt::format("the hosts have {} devices and the tree has {}",
                                        cluster_.device_host.size(), cluster_.device_kind.size()));
  }
  drop_unused_kinds(cluster_);
  return std::move(cluster_);
}

// How a list of names is written: the common beginning of names that count up, or the name itself.
struct WrittenName {
  std::string text;
  bool numbered = false;
};

std::vector<WrittenName> written_names(std::size_t count, const auto& name_at) {
  std::map<std::string, int> next;
  std::vector<WrittenName> written;
  written.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = name_at(i);
    const auto last = name.find_last_not_of("0123456789");
    const std::string prefix = last == std::string::npos ? "" : name.substr(0, last + 1);
    const auto expected = next.find(prefix);
    const int number = expected == next.end() ? 0 : expected->second;
    if (!prefix.empty() && name == fmt::format("{}{}", prefix, number)) {
      next[prefix] = number + 1;
      written.push_back({prefix, true});
    } else {
      written.push_back({name, false});
    }
  }
  return written;
}

class TreeWriter {
 public:
  explicit TreeWriter(const Cluster& cluster)
      : cluster_(cluster),
        children_(child_lists(cluster)),
        names_(written_names(
            cluster.domains.size(),
            [&](std::size_t i) -> const std::string& { return cluster.domains[i].name; })),
        class_of_(subtree_classes(cluster, children_, [&](std::size_t i) {
          return (names_[i].numbered ? "#" : "=") + names_[i].text;
        })) {}

  Json node(int index, int count) const {
    const auto i = static_cast<std::size_t>(index);
    const Domain& domain = cluster_.domains[i];
    Json json;
    write_name(json, names_[i], count);
    json["level"] = domain.level;
    if (domain.parent >= 0) {
      json["link"] = domain.link;
      json["uplink"] = exact_text(domain.uplink);
      if (domain.lane.value > 0) json["lane"] = exact_text(domain.lane);
      if (domain.latency.value > 0) json["latency"] = exact_text(domain.latency);
    }
    if (domain.pair_limit.value > 0) json["pair_limit"] = exact_text(domain.pair_limit);
    const std::vector<int>& children = children_[i];
    if (children.empty()) {
      json["kind"] = cluster_.kind(DeviceId(domain.first_device)).name;
      return json;
    }
    Json list = Json::array();
    for (std::size_t from = 0; from < children.size();) {
      const auto class_at = [&](std::size_t k) {
        return class_of_[static_cast<std::size_t>(children[k])];
      };
      std::size_t to = from + 1;
      // Only names that count up can be repeated.
      const bool repeats = names_[static_cast<std::size_t>(children[from])].numbered;
      while (repeats && to < children.size() && class_at(to) == class_at(from)) ++to;
      list.push_back(node(children[from], static_cast<int>(to - from)));
      from = to;
    }
    json["children"] = std::move(list);
    return json;
  }

  Json hosts() const {
    std::vector<int> sizes(cluster_.hosts.size());
    for (const int host : cluster_.device_host) ++sizes[static_cast<std::size_t>(host)];
    const auto names =
        written_names(cluster_.hosts.size(),
                      [&](std::size_t i) -> const std::string& { return cluster_.hosts[i]; });
    Json list = Json::array();
    for (std::size_t from = 0; from < names.size();) {
      std::size_t to = from + 1;
      while (names[from].numbered && to < names.size() && names[to].numbered &&
             names[to].text == names[from].text && sizes[to] == sizes[from]) {
        ++to;
      }
      Json json;
      write_name(json, names[from], static_cast<int>(to - from));
      json["devices"] = sizes[from];
      list.push_back(std::move(json));
      from = to;
    }
    return list;
  }

 private:
  static void write_name(Json& json, const WrittenName& name, int count) {
    json[name.numbered ? "names" : "name"] = name.text;
    if (count > 1) json["count"] = count;
  }

  const Cluster& cluster_;
  std::vector<std::vector<int>> children_;
  std::vector<WrittenName> names_;
  std::vector<int> class_of_;
};

}  // namespace

Cluster read_cluster_tree(const YAML::Node& node, std::string_view source, std::string name,
                          KindTable& kinds) {
  return TreeReader(source, kinds).read(node, std::move(name));
}

std::string print_cluster(const Cluster& cluster) {
  const TreeWriter writer(cluster);
  Json json;
  json["version"] = 1;
  json["name"] = cluster.name;
  json["kinds"] = Json::array();
  for (const DeviceKind& kind : cluster.kinds) json["kinds"].push_back(kind_to_json(kind));
  Json& tree = json["tree"];
  if (cluster.host_memory.value > 0) tree["host_memory"] = exact_text(cluster.host_memory);
  tree["hosts"] = writer.hosts();
  tree["root"] = writer.node(0, 1);
  // A file name need not be UTF-8. A tree with thousands of named hosts is not for reading.
  const auto dump = [&](int indent) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
  };
  std::string text = dump(2);
  return text.size() < (1u << 16) ? text : dump(-1);
}

}  // namespace meshwright
