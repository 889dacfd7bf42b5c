#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "cluster/catalogue.h"
#include "cluster/cluster.h"

namespace meshwright {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of(std::string_view text) {
  try {
    parse_cluster_yaml(text, "x.yaml");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// Everything that a cluster says, to compare two.
std::string dump(const Cluster& cluster) {
  std::string text = print_cluster(cluster);
  for (const Domain& d : cluster.domains) {
    text += d.name + ' ' + d.level + ' ' + d.link + ' ' + std::to_string(d.parent) + ' ' +
            std::to_string(d.first_device) + ' ' + std::to_string(d.device_count) + ' ';
    for (const double value : {d.uplink.value, d.lane.value, d.pair_limit.value, d.latency.value}) {
      text += testing::PrintToString(value) + ' ';
    }
  }
  for (const std::string& host : cluster.hosts) text += host + ' ';
  return text;
}

void expect_round_trip(const Cluster& cluster) {
  const std::string printed = print_cluster(cluster);
  const Cluster again = parse_cluster_yaml(printed, "printed");
  EXPECT_EQ(dump(again), dump(cluster));
  EXPECT_EQ(again.device_kind, cluster.device_kind);
  EXPECT_EQ(again.device_host, cluster.device_host);
  EXPECT_EQ(again.device_domain, cluster.device_domain);
  EXPECT_EQ(again.hosts, cluster.hosts);
  EXPECT_EQ(again.host_memory, cluster.host_memory);
}

Cluster example(const std::string& name) {
  return read_cluster(std::string(MESHWRIGHT_SOURCE_DIR) + "/examples/clusters/" + name);
}

const Domain& domain(const Cluster& cluster, std::string_view name) {
  for (const Domain& d : cluster.domains) {
    if (d.name == name) return d;
  }
  throw std::runtime_error("no domain " + std::string(name));
}

TEST(ClusterFile, ShippedExamplesRoundTrip) {
  int count = 0;
  for (const char* directory : {"examples/clusters", "examples/netlab"}) {
    for (const auto& file : std::filesystem::directory_iterator(
             std::filesystem::path(MESHWRIGHT_SOURCE_DIR) / directory)) {
      SCOPED_TRACE(file.path().filename());
      expect_round_trip(read_cluster(file.path().string()));
      ++count;
    }
  }
  EXPECT_GE(count, 10);
}

// The documentation's complete files, which start with a name or a brace, are files that work.
TEST(ClusterFile, DocumentedFilesWork) {
  const std::string page =
      read_file(std::filesystem::path(MESHWRIGHT_SOURCE_DIR) / "docs/cluster_format.md", 1u << 20);
  int files = 0;
  std::size_t at = 0;
  while ((at = page.find("\n```", at)) != std::string::npos) {
    const std::size_t begin = page.find('\n', at + 1) + 1;
    const std::size_t end = page.find("\n```", begin - 1);
    ASSERT_NE(end, std::string::npos);
    const std::string block = page.substr(begin, end + 1 - begin);
    at = end + 1;
    if (!block.starts_with("name:") && !block.starts_with("{")) continue;
    EXPECT_EQ(error_of(block), "no error") << block;
    ++files;
  }
  EXPECT_EQ(files, 2);
}

TEST(ClusterFile, ShorthandsRoundTrip) {
  for (const char* text :
       {"h100:1", "dgx-h100:2", "dgx-h100:100", "dgx-1:3", "l40s:2x7", "gb200-nvl72:3",
        "frontier:9", "dgx-a100:2+dgx-h100:40+t4:1x4", "mi300x-8:2@eth25", "cpu:3"}) {
    SCOPED_TRACE(text);
    expect_round_trip(read_cluster(text));
  }
  // 2,048 equal hosts take no more text than two.
  EXPECT_LT(print_cluster(read_cluster("dgx-h100:2048")).size(), 3000u);
}

TEST(ClusterFile, RandomTreesRoundTrip) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    Cluster cluster = read_cluster(trial % 2 == 0 ? "dgx-h100:70" : "dgx-1:2+h200:2x3");
    // Numbers, names and links of a few domains differ from their siblings'.
    for (int change = trial % 5; change > 0; --change) {
      Domain& d = cluster.domains[1 + random() % (cluster.domains.size() - 1)];
      d.uplink = BytesPerSecond(std::uniform_real_distribution<double>(1, 1e12)(random));
      d.latency = Seconds(std::uniform_real_distribution<double>(0, 1)(random));
      d.name = "x" + std::to_string(random() % 1000000) + (random() % 2 ? "y" : "");
      d.link = random() % 2 ? "eth" : "ib";
    }
    expect_round_trip(cluster);
  }
}

TEST(ClusterFile, Oversubscription) {
  const Cluster cluster = example("oversubscribed.yaml");
  EXPECT_EQ(cluster.device_count(), 512);
  EXPECT_EQ(cluster.hosts.front(), "node0");
  EXPECT_EQ(domain(cluster, "node0").uplink.value, 400e9);
  EXPECT_EQ(domain(cluster, "rack0").uplink.value, 4 * 400e9 / 2);
  EXPECT_EQ(domain(cluster, "pod0").uplink.value, 4 * (4 * 400e9 / 2) / 7);
  EXPECT_EQ(domain(cluster, "pod3").latency.value, 3e-6);
  EXPECT_EQ(domain(cluster, "rack15").lane.value, 50e9);
  EXPECT_EQ(cluster.domains[0].name, "spine0");
}

TEST(ClusterFile, PairsAndSlowCable) {
  const Cluster cluster = example("workstations.yaml");
  EXPECT_EQ(domain(cluster, "d0").uplink.value, 56.25e9);
  EXPECT_EQ(domain(cluster, "d0").link, "nvlink");
  EXPECT_EQ(domain(cluster, "pair0").uplink.value, 2 * 31.5e9);
  EXPECT_EQ(domain(cluster, "pair0").latency.value, 3e-6);
  EXPECT_EQ(domain(cluster, "desk1").uplink.value, 1.25e9);
  EXPECT_EQ(domain(cluster, "desk2").uplink.value, 0.125e9);
  EXPECT_EQ(domain(cluster, "desk2").latency.value, 60e-6);
}

// The two rates of a CPU are two keys of its kind, and the wiring is the order of the hosts.
TEST(ClusterFile, LabOfUnequalProcessors) {
  const Cluster cluster =
      read_cluster(std::string(MESHWRIGHT_SOURCE_DIR) + "/examples/netlab/unequal_pairs.yaml");
  ASSERT_EQ(cluster.device_count(), 4);
  EXPECT_EQ(cluster.kind(DeviceId(0)).fp64.value, 40e9);
  EXPECT_EQ(cluster.kind(DeviceId(1)).fp32.value, 20e9);
  EXPECT_EQ(cluster.kind(DeviceId(2)).fp32.value, 40e9);
  EXPECT_EQ(domain(cluster, "pair1").uplink.value, 100e6 / 8);
  EXPECT_EQ(domain(cluster, "node3").uplink.value, 500e6 / 8);
}

TEST(ClusterFile, OtherExamples) {
  const Cluster rack = example("nvlink_rack.yaml");
  EXPECT_EQ(domain(rack, "nvlink1").device_count, 72);
  EXPECT_EQ(rack.hosts.size(), 36u);
  EXPECT_EQ(domain(rack, "nvlink1").uplink,
            domain(read_cluster("gb200-nvl72:2"), "nvlink1").uplink);
  const Cluster lab = example("lab.yaml");
  EXPECT_THAT(lab.hosts, ElementsAre("dgx0", "dgx1", "dgx2", "dgx3", "pcie0", "pcie1"));
  EXPECT_EQ(lab.kinds.size(), 2u);
  EXPECT_EQ(lab.host_memory.value, 512 * 0x1p30);
  const Cluster mixed = example("mixed_host.json");
  EXPECT_THAT(mixed.device_host, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(mixed.kind(DeviceId(3)).name, "rtx-4090");
  const Cluster custom = example("custom_chip.yaml");
  EXPECT_EQ(custom.kinds[0].memory.value, 46.5 * 0x1p30);
  EXPECT_EQ(domain(custom, "tray0").pair_limit.value, 50e9);
  EXPECT_EQ(domain(custom, "tray0").latency.value, 12e-6);
  const Cluster switches = example("pcie_switches.yaml");
  EXPECT_EQ(domain(switches, "pcie1").uplink.value, 31.5e9);
  EXPECT_EQ(domain(switches, "d9").latency.value, 2.5e-6);
  EXPECT_EQ(domain(switches, "rack1").uplink.value, 100e9);
}

constexpr std::string_view kHost = "hosts:\n  - devices: {kind: h100, count: 8}\n";

std::string with_levels(std::string_view levels) {
  return "hosts:\n  - count: 8\n    devices: {kind: h100, count: 8}\n    nics: {gbps: "
         "100}\nlevels:\n" +
         std::string(levels);
}

TEST(ClusterFile, MinimalFile) {
  EXPECT_EQ(error_of(kHost), "no error");
  EXPECT_EQ(error_of(with_levels("  - {level: spine}\n")), "no error");
}

TEST(ClusterFile, UnknownKeysNameTheLegalOnes) {
  EXPECT_THAT(error_of("hots:\n  - {}\n"),
              AllOf(StartsWith("x.yaml:1:1: unknown key \"hots\" in a cluster file"),
                    HasSubstr("legal keys: version, name, kinds, hosts, levels, links, tree")));
  EXPECT_THAT(error_of("hosts:\n  - devices: {kind: h100, number: 8}\n"),
              StartsWith("x.yaml:2:27: unknown key \"number\" in an entry of devices"));
  EXPECT_THAT(error_of("hosts:\n  - device: {}\n"), HasSubstr("unknown key \"device\" in a host"));
  EXPECT_THAT(error_of(with_levels("  - {level: rack, size: 4}\n")), HasSubstr("hosts_per"));
}

TEST(ClusterFile, WrongShapesAndValues) {
  const std::pair<std::string, std::string> cases[] = {
      {"name: x\n", "x.yaml:1:1: a cluster file needs the key hosts"},
      {"- 1\n", "must be a mapping, not a list"},
      {"hosts: 4\n", "x.yaml:1:8: hosts must be a list, not the text \"4\""},
      {"hosts: []\n", "hosts is an empty list"},
      {"hosts: [4]\n", "a host must be a mapping"},
      {"hosts:\n  - {count: 2}\n", "a host needs the key devices"},
      {"hosts:\n  - devices: {kind: h1000}\n", "x.yaml:2:21: unknown device \"h1000\""},
      {"hosts:\n  - devices: {kind: h100, count: 0}\n",
       "x.yaml:2:34: count is \"0\", which must be a whole number from 1 to 1,024"},
      {"hosts:\n  - devices: {kind: h100, count: 99999999999}\n", "must be a whole number"},
      {"hosts:\n  - devices: {kind: h100, count: 8.5}\n", "must be a whole number"},
      {"hosts:\n  - devices: [{kind: h100, count: 1024}, {kind: h100}]\n",
       "more than 1,024 devices"},
      {"hosts:\n  - {count: -1, devices: {kind: h100}}\n", "count is \"-1\""},
      {"hosts:\n  - {count: 1048576, devices: {kind: h100, count: 8}, nics: {gbps: 1}}\n",
       "8,388,608 devices are more than the limit of 1,048,576"},
      {"hosts:\n  - {count: 2, devices: {kind: h100}}\n",
       "x.yaml:2:3: host host has no NICs, so it cannot reach the other 1 hosts"},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: 0}}\n", "gbps is \"0\""},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: -4}}\n", "gbps is \"-4\""},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: 1e9}}\n", "gbps is \"1e9\""},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: nan}}\n", "gbps is \"nan\""},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: 1, kind: wifi}}\n",
       "unknown kind of link \"wifi\""},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: 1, latency: 5}}\n", "\"5\" has no unit"},
      {"hosts:\n  - {devices: {kind: h100}, nics: {gbps: 1, latency: 5 s}}\n", "more than 1 s"},
      {"hosts:\n  - {devices: {kind: h100}, ram: 0 GiB}\n", "ram is zero"},
      {"hosts:\n  - {devices: {kind: h100}, ram: 1e30 GiB}\n", "ram is more than 1 EiB"},
      {"hosts:\n  - {devices: {kind: h100}, pair_limit: 0 GB/s}\n",
       "x.yaml:2:41: pair_limit is zero"},
      {"hosts:\n  - {devices: {kind: h100}, pair_limit: 4 gb/s}\n", "unknown unit \"gb/s\""},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: full}\n", "l40s has no link between devices"},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: pairs}\n", "pairs need a device_link"},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: mesh}\n", "unknown fabric \"mesh\""},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: [{level: pcie, group: 4}]}\n",
       "needs the key uplink"},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: [{level: pcie, group: 1, uplink: 1 GB/s, link: "
       "pcie}]}\n",
       "from 2 to 1,024"},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: [{level: a, group: 4, uplink: 1 GB/s, link: "
       "pcie}, "
       "{level: b, group: 6, uplink: 1 GB/s, link: pcie}]}\n",
       "groups of 6 cannot be made of groups of 4"},
      {"hosts:\n  - {devices: {kind: l40s}, fabric: [{level: a, group: 4, uplink: 0 GB/s, link: "
       "pcie}]}\n",
       "uplink is zero"},
      {"hosts:\n  - {preset: dgx-h1000}\n", "unknown preset \"dgx-h1000\""},
      {"hosts:\n  - {preset: dgx-h100, devices: {kind: h100}}\n", "cannot have devices"},
      {"hosts:\n  - {preset: gb200-nvl72}\n  - {preset: dgx-h100}\n", "must be alone"},
      {"hosts:\n  - {name: a b, devices: {kind: h100}}\n", "\"a b\" is not a name"},
      {"hosts:\n  - {name: a, devices: {kind: h100}, nics: {gbps: 1}}\n  - {name: a, devices: "
       "{kind: "
       "h100}, nics: {gbps: 1}}\n",
       "two domains have this name"},
      {with_levels("  - {level: rack, hosts_per: 0}\n"), "hosts_per is \"0\""},
      {with_levels("  - {level: host, hosts_per: 2}\n"), "cannot be called host"},
      {with_levels("  - {level: a, hosts_per: 4}\n  - {level: b, hosts_per: 4}\n"),
       "b with 4 hosts cannot hold a with 4"},
      {with_levels("  - {level: a}\n  - {level: b}\n"), "only the last level may leave out"},
      {with_levels("  - {level: a, oversubscription: 2}\n"), "is the top and has no uplink"},
      {with_levels("  - {level: a, hosts_per: 2, oversubscription: 0.5}\n"),
       "must be a number from 1 to 1000"},
      {with_levels("  - {level: a, hosts_per: 2, uplink: 0 Gb/s}\n"), "uplink is zero"},
      {with_levels("  - {level: a, hosts_per: 2, uplink: -5 Gb/s}\n"), "not negative"},
      {with_levels("  - {level: a, hosts_per: 2, uplink: 5000 TB/s}\n"), "more than 1,000 TB/s"},
      {with_levels("  - {level: a, hosts_per: 2, joins: switches}\n"), "joins is \"switches\""},
      {std::string(kHost) + "links:\n  - {domain: host7, uplink: 1 GB/s}\n",
       "x.yaml:4:14: no domain is called \"host7\""},
      {std::string(kHost) + "links:\n  - {domain: host0, uplink: 1 GB/s}\n", "has no uplink"},
      {std::string(kHost) + "version: 2\n", "version is \"2\""},
      {std::string(kHost) + "hosts: []\n", "key \"hosts\" appears twice"},
      {std::string(kHost) + "kinds:\n  - {name: a, memory: 1 GiB}\n",
       "needs the key memory_bandwidth"},
      {std::string(kHost) +
           "kinds:\n  - {name: a, memory: 1 GiB, memory_bandwidth: 1 GB/s, fp32: 1 "
           "TFLOP/s}\n",
       "needs pcie or device_link"},
      {std::string(kHost) + "kinds:\n  - {name: a, like: h100, fp32: 0 TFLOP/s}\n", "fp32 is zero"},
      {std::string(kHost) + "kinds:\n  - {name: a, like: h100}\n  - {name: a, like: h100}\n",
       "defined twice"},
      {"tree: {root: {name: a, level: host, children: [{names: d, count: 2000000, level: device, "
       "kind: "
       "h100, uplink: 1 GB/s, link: pcie}]}, hosts: [{name: a, devices: 8}]}\n",
       "from 1 to 1,048,576"},
      {"tree: {root: {name: a, level: host, children: [{names: b, count: 1000000, level: x, "
       "uplink: 1 "
       "GB/s, link: pcie, children: [{names: d, count: 1000000, level: device, kind: h100, uplink: "
       "1 "
       "GB/s, link: pcie}]}]}, hosts: [{name: a, devices: 8}]}\n",
       "more than 1,048,576 devices"},
      {"tree: {root: {name: a, level: host, children: [{name: d, level: device, kind: h100, "
       "uplink: 1 "
       "GB/s, link: pcie}]}, hosts: [{name: a, devices: 8}]}\n",
       "the hosts have 8 devices and the tree has 1"},
      {"tree: {root: {name: a, level: host, children: [{name: d, level: device, kind: h100, link: "
       "pcie}]}, hosts: [{name: a, devices: 1}]}\n",
       "a domain needs the key uplink"},
      {"tree: {root: {name: a, level: host}, hosts: [{name: a, devices: 1}]}\n",
       "either kind (a device) or children"},
      {"tree: {}\nhosts: []\n", "hosts and tree exclude each other"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(error_of(text), AllOf(HasSubstr(message), StartsWith("x.yaml"))) << text;
  }
}

TEST(ClusterFile, HostileText) {
  const auto repeated = [](std::string_view piece, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += piece;
    return text;
  };
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("# nothing\n"), HasSubstr("is empty"));
  EXPECT_THAT(error_of("a: b\n---\nc: d\n"), HasSubstr("x.yaml:2:1: text after the end"));
  // A stray comma makes the YAML library return empty documents for ever.
  EXPECT_THAT(error_of(", a: b\n"), HasSubstr("text after the end"));
  EXPECT_THAT(error_of("a: [b\n"), AllOf(HasSubstr("not valid YAML"), StartsWith("x.yaml:")));
  EXPECT_THAT(error_of(std::string("a: \0b\n", 6)), HasSubstr("x.yaml:1:4: byte 0x00"));
  EXPECT_THAT(error_of("\x7f"
                       "ELF\x02\x01\x01"),
              HasSubstr("not a text file"));
  EXPECT_THAT(error_of(repeated("[", 100000)), HasSubstr("nested more than 64 levels"));
  EXPECT_THAT(error_of(repeated("{a: ", 100000)), HasSubstr("nested more than 64 levels"));
  EXPECT_THAT(error_of(repeated("- ", 100000)), HasSubstr("indented by more than 200"));
  EXPECT_THAT(error_of(repeated("? ", 100000)), HasSubstr("indented by more than 200"));
  std::string staircase;
  for (std::size_t i = 0; i < 1500; ++i) staircase += std::string(i, ' ') + "a:\n";
  EXPECT_THAT(error_of(staircase), HasSubstr("indented by more than 200"));
  EXPECT_THAT(error_of(std::string(5u << 20, 'a')), HasSubstr("more than 2 MiB"));
  EXPECT_THAT(error_of("hosts: [" + repeated("a,", 300000) + "]\n"),
              HasSubstr("more than 200000 values"));
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 30; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last + ", " + last +
            ", " + last + ", " + last + "]\n";
  }
  EXPECT_THAT(error_of(bomb), HasSubstr("when aliases are expanded"));
  EXPECT_THAT(error_of("hosts: &a [*a]\n"), HasSubstr("an alias inside its own anchor"));
  EXPECT_THAT(error_of("? [a]\n: b\n"), HasSubstr("a key must be a single value"));
  EXPECT_THAT(error_of("hosts: *nowhere\n"), HasSubstr("not valid YAML"));
}

// Whatever one does to the shipped examples, the answer is a cluster or an Error, and soon.
TEST(ClusterFile, MutatedExamplesNeverCrash) {
  std::vector<std::string> seeds;
  for (const auto& file : std::filesystem::directory_iterator(
           std::filesystem::path(MESHWRIGHT_SOURCE_DIR) / "examples" / "clusters")) {
    seeds.push_back(read_file(file.path(), 1u << 20));
  }
  seeds.push_back(print_cluster(read_cluster("dgx-1:2+gb200-nvl72:1")));
  std::sort(seeds.begin(), seeds.end());
  std::mt19937 random(5);
  const std::string_view pieces[] = {"[",  "]", "{", "}", ":", ",",  "- ",  "\n",  "  ",   "&a ",
                                     "*a", "!", "|", ">", "'", "\"", "0",   "-",   "9",    "e9",
                                     "#",  "?", "%", "@", "~", "\t", "...", "---", "\xff", "<<"};
  int errors = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text = seeds[random() % seeds.size()];
    for (int change = 1 + static_cast<int>(random() % 4); change > 0; --change) {
      const std::size_t at = random() % (text.size() + 1);
      switch (random() % 3) {
        case 0:
          text.insert(at, pieces[random() % std::size(pieces)]);
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default: {
          const std::size_t from = random() % text.size();
          text.insert(at, text.substr(from, 1 + random() % 40));
        }
      }
    }
    try {
      check_cluster(parse_cluster_yaml(text, "x.yaml"));
    } catch (const Error& error) {
      ++errors;
      EXPECT_THAT(error.where(), StartsWith("x.yaml")) << text;
    }
  }
  EXPECT_GT(errors, 1000);
}

TEST(ClusterFile, LargeFilesAreReadInTime) {
  std::string text = "hosts:\n";
  for (int i = 0; i < 4000; ++i) {
    text += "  - {name: h" + std::to_string(i) +
            ", devices: {kind: h100, count: 8}, nics: {gbps: 100}}\n";
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_cluster_yaml(text, "x.yaml").device_count(), 32000);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5);
}

}  // namespace
}  // namespace meshwright
