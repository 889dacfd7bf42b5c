#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "cluster/cluster.h"
#include "cluster/yaml_fields.h"

namespace meshwright {

/// The device kinds of one cluster file: those it defines, then the catalogue.
class KindTable {
 public:
  explicit KindTable(std::string_view source) : source_(source) {}

  /// Defines the kind that a mapping describes (docs/cluster_format.md, "Device kinds") and returns
  /// its index.
  int define(const YAML::Node& node);
  /// The index of a kind given by name or as an inline mapping; takes it from the catalogue if
  /// needed. `sharers` is how many devices share the host, for "cpu".
  int use(const YAML::Node& node, int sharers);

  const DeviceKind& operator[](int index) const { return kinds_[static_cast<std::size_t>(index)]; }
  const std::vector<DeviceKind>& kinds() const { return kinds_; }

 private:
  int index_of(std::string_view name) const;

  std::string source_;
  std::vector<DeviceKind> kinds_;
};

/// The mapping from which KindTable::define makes the same kind.
Json kind_to_json(const DeviceKind& kind);

}  // namespace meshwright
