#include "cluster/kind_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parse_units.h"
#include "base/spelling.h"
#include "cluster/catalogue.h"

namespace meshwright {

int KindTable::index_of(std::string_view name) const {
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

int KindTable::define(const YAML::Node& node) {
  const YamlFields fields(
      node, source_, "a device kind",
      {"name", "like", "vendor", "architecture", "memory", "memory_bandwidth", "fp32", "fp64",
       "tf32", "bf16", "fp16", "fp8", "link", "device_link", "pcie", "dollars_per_hour"});
  DeviceKind kind;
  if (fields.has("like")) {
    try {
      kind = find_device(fields.text("like"));
    } catch (const Error& error) {
      fields.fail_at("like", error.message(), error.hint());
    }
  }
  kind.name = fields.name("name");
  if (index_of(kind.name) >= 0) {
    fields.fail_at("name", fmt::format("device kind {} is defined twice", kind.name));
  }
  kind.vendor = fields.has("vendor")  ? fields.name("vendor")
                : kind.vendor.empty() ? "custom"
                                      : kind.vendor;
  kind.architecture = fields.has("architecture")  ? fields.name("architecture")
                      : kind.architecture.empty() ? "custom"
                                                  : kind.architecture;
  if (!fields.has("like")) {
    for (const char* key : {"memory", "memory_bandwidth", "fp32"}) fields.at(key);
  }
  kind.memory = fields.bytes_or("memory", kind.memory);
  kind.memory_bandwidth = fields.bandwidth_or("memory_bandwidth", kind.memory_bandwidth);
  kind.fp32 = fields.flop_rate_or("fp32", kind.fp32);
  kind.fp64 = fields.flop_rate_or("fp64", kind.fp64);
  kind.tf32 = fields.flop_rate_or("tf32", kind.tf32);
  kind.bf16 = fields.flop_rate_or("bf16", kind.bf16);
  kind.fp16 = fields.flop_rate_or("fp16", kind.fp16);
  kind.fp8 = fields.flop_rate_or("fp8", kind.fp8);
  kind.device_link = fields.bandwidth_or("device_link", kind.device_link);
  kind.pcie = fields.bandwidth_or("pcie", kind.pcie);
  if (fields.has("link")) {
    kind.link = fields.text("link");
    try {
      find_link(kind.link);
    } catch (const Error& error) {
      fields.fail_at("link", error.message(), error.hint());
    }
  }
  kind.dollars_per_hour = fields.number_or("dollars_per_hour", 0, 1e6, kind.dollars_per_hour);
  if (kind.fp32.value == 0) fields.fail_at("fp32", "fp32 is zero, which must be more");
  if (kind.device_link.value > 0 && kind.link.empty()) {
    fields.fail_at("device_link", "device_link needs the key link: what kind of link it is",
                   fmt::format("one of {}", fmt::join(link_names(), ", ")));
  }
  if (kind.device_link.value == 0 && kind.pcie.value == 0) {
    fields.fail("a device kind needs pcie or device_link: how it is attached",
                "e.g. pcie: 31.5 GB/s");
  }
  kinds_.push_back(std::move(kind));
  return static_cast<int>(kinds_.size()) - 1;
}

int KindTable::use(const YAML::Node& node, int sharers) {
  if (node.IsMap()) return define(node);
  const std::string name = yaml_scalar(node, source_, "kind");
  const int defined = index_of(name);
  if (defined >= 0) return defined;
  DeviceKind kind;
  try {
    kind = find_device(name);
  } catch (const Error& error) {
    throw Error(error.message(), yaml_place(node, source_), error.hint());
  }
  if (kind.vendor == "cpu") kind = cpu_share(sharers);
  if (const int met = index_of(kind.name); met >= 0) {
    if (kinds_[static_cast<std::size_t>(met)].memory == kind.memory) return met;
    throw Error(fmt::format("two different device kinds named {}", kind.name),
                yaml_place(node, source_),
                kind.vendor == "cpu" ? "hosts that share out a CPU need equally many devices"
                                     : "rename the kind that this file defines");
  }
  kinds_.push_back(std::move(kind));
  return static_cast<int>(kinds_.size()) - 1;
}

Json kind_to_json(const DeviceKind& kind) {
  Json json;
  json["name"] = kind.name;
  json["vendor"] = kind.vendor;
  json["architecture"] = kind.architecture;
  json["memory"] = exact_text(kind.memory);
  json["memory_bandwidth"] = exact_text(kind.memory_bandwidth);
  json["fp32"] = exact_text(kind.fp32);
  const std::pair<const char*, FlopsPerSecond> rates[] = {{"fp64", kind.fp64},
                                                          {"tf32", kind.tf32},
                                                          {"bf16", kind.bf16},
                                                          {"fp16", kind.fp16},
                                                          {"fp8", kind.fp8}};
  for (const auto& [key, rate] : rates) {
    if (rate.value > 0) json[key] = exact_text(rate);
  }
  if (!kind.link.empty()) json["link"] = kind.link;
  if (kind.device_link.value > 0) json["device_link"] = exact_text(kind.device_link);
  if (kind.pcie.value > 0) json["pcie"] = exact_text(kind.pcie);
  if (kind.dollars_per_hour > 0) json["dollars_per_hour"] = kind.dollars_per_hour;
  return json;
}

}  // namespace meshwright
