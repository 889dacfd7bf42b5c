#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace meshwright {

/// Typed, checked access to hostile YAML; for .cpp files only, since it includes yaml-cpp. Every
/// Error is placed at `source:line:column`.
class YamlFields {
 public:
  /// A mapping whose keys must all be in `legal`. `what` names it in errors: "a host".
  YamlFields(const YAML::Node& node, std::string_view source, std::string_view what,
             std::vector<std::string_view> legal);

  bool has(std::string_view key) const;
  /// The value of a key that must be there.
  YAML::Node at(std::string_view key) const;
  /// The items of a sequence; empty when the key is absent. Throws when it is something else or
  /// empty.
  std::vector<YAML::Node> list(std::string_view key) const;

  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  /// A name: 1 to 64 letters, digits and - _ . characters.
  std::string name(std::string_view key) const;
  int count(std::string_view key, int least, int most) const;
  int count_or(std::string_view key, int least, int most, int otherwise) const;
  double number(std::string_view key, double least, double most) const;
  double number_or(std::string_view key, double least, double most, double otherwise) const;

  /// Quantities with a unit; `otherwise` when the key is absent. Sizes and bandwidths are more than
  /// zero, a rate of zero means that the device has no such unit.
  Bytes bytes_or(std::string_view key, Bytes otherwise) const;
  BytesPerSecond bandwidth_or(std::string_view key, BytesPerSecond otherwise) const;
  FlopsPerSecond flop_rate_or(std::string_view key, FlopsPerSecond otherwise) const;
  /// A latency: zero to one second.
  Seconds latency_or(std::string_view key, Seconds otherwise) const;

  [[noreturn]] void fail(std::string message, std::string hint = {}) const;
  [[noreturn]] void fail_at(std::string_view key, std::string message, std::string hint = {}) const;

  const std::string& source() const { return source_; }
  const YAML::Node& node() const { return node_; }

 private:
  YAML::Node node_;
  std::string source_;
  std::string what_;
};

/// `source:line:column` of a node.
std::string yaml_place(const YAML::Node& node, std::string_view source);

/// The text of a scalar; throws Error naming `what` when the node is something else.
std::string yaml_scalar(const YAML::Node& node, std::string_view source, std::string_view what);

/// check_yaml_text, then one document, then bounds on what aliases expand to: at most 200,000
/// nodes, 64 levels, no key twice in a mapping.
YAML::Node load_yaml(std::string_view text, std::string_view source);

}  // namespace meshwright
