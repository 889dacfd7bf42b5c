#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "space/order_pattern.h"
#include "space/restrictions.h"

namespace meshwright {

/// Which operators a rule is about. Of every list that is not empty one entry must fit.
struct OpMatch {
  std::vector<std::string> path;  ///< Patterns (base/path_pattern.h) of the operator's module path.
  std::vector<std::string> kind;  ///< Names of operator definitions: "linear".
  std::vector<std::string> parameter;  ///< Patterns of the path of a parameter that it reads.
  std::vector<std::string> factor;     ///< Labels of factors that it has.
  /// Ranges of layer indices, both ends included: of the first number in the module path.
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;

  friend bool operator==(const OpMatch&, const OpMatch&) = default;
};

/// In how many parts a factor may be split.
struct FactorDegree {
  std::string factor;
  Allowed degree;
  friend bool operator==(const FactorDegree&, const FactorDegree&) = default;
};

/// What the splits of an operator may be (allow) or must not be (forbid).
struct SplitLimit {
  std::vector<std::string> factors;  ///< Labels or letters; empty = every factor.
  std::vector<std::string> axes;     ///< Axes or roles, as in OpOverride; empty = every axis.
  std::vector<FactorDegree> degree;  ///< Numbers of parts; one part is no split.
  std::int64_t max_degree = 0;       ///< allow: of every factor; 0 = no limit.
  std::optional<bool> replicate;     ///< Along some axis the operator does the same work.

  friend bool operator==(const SplitLimit&, const SplitLimit&) = default;
};

/// Where operators run. Several stages or ranges: any of them.
struct Placement {
  std::vector<int> stages;                   ///< From 0; -1 = the last, -2 the one before.
  std::vector<std::pair<int, int>> devices;  ///< Ranges, both ends included.
  bool every_device = false;  ///< Spread over all devices, whatever stages there are.

  bool empty() const { return stages.empty() && devices.empty() && !every_device; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// One rule: the operators that it matches, and what holds for each of them.
struct SpaceRule {
  std::string name;
  std::string place;  ///< file:line:column.
  OpMatch match;

  bool replicate = false;                ///< require: no factor is split but those of `split`.
  std::vector<OpOverride::Split> split;  ///< require: exactly these axes for these factors.
  std::vector<std::string> must_split;   ///< require: these factors are split, however.
  std::vector<FactorDegree> degree;      ///< require: in so many parts.
  std::optional<SplitLimit> allow;
  std::optional<SplitLimit> forbid;
  Placement assign;
  Placement forbid_placement;
  std::optional<Recompute> recompute;  ///< Of the segments of matched operators.
  std::vector<StateSharding> state;    ///< Of the stages of matched operators; empty = any.

  /// Whether it says anything about how operators are split.
  bool limits_splits() const {
    return replicate || !split.empty() || !must_split.empty() || !degree.empty() ||
           allow.has_value() || forbid.has_value();
  }
};

/// A rewriting of the graph that comes before everything else (op-trans with an algorithm).
struct SpaceTransform {
  std::string name;
  std::string place;
  std::string transform;  ///< "co_shard", "slice_sequence".
  std::string match;      ///< Pattern of module paths.
  std::string factor;
  int parts = 1;
};

struct SpaceOrder {
  std::string name;
  std::string place;
  OrderPattern rule;
};

/// One entry of `degrees`: a rule of its own, so that it can be named in a conflict.
struct SpaceDegree {
  std::string key;
  std::string place;
  Allowed numbers;                 ///< pp, vpp, dp, tp, cp, ep, etp, micro_batch.
  std::vector<std::string> names;  ///< zero, recompute, schedule.
  bool flag = false;               ///< sp, hybrid.
};

/// A space of plans as a user writes it (docs/plan_space.md).
struct PlanSpace {
  std::string name;
  std::string paper;
  std::string summary;
  std::string source;  ///< File name or "named".
  std::vector<SpaceDegree> degrees;
  std::vector<SpaceTransform> transforms;
  std::vector<SpaceRule> rules;
  std::vector<SpaceOrder> order;
};

/// Parses the text of a plan-space file. Throws Error placed at `source:line:column`.
PlanSpace parse_space(std::string_view text, std::string_view source);

/// The canonical text: print_space(parse_space(print_space(s))) == print_space(s).
std::string print_space(const PlanSpace& space);

/// Reads a file or, when no such file exists, one of the shipped spaces by its name. Throws Error
/// naming near names.
PlanSpace read_space(const std::string& file_or_name);

/// The text of every shipped space, by name (spaces/NAME.yaml).
struct NamedSpace {
  std::string name;
  std::string_view text;
};
std::vector<NamedSpace> named_spaces();

/// "4", "any", "[2, 4]", "{min: 2, max: 8}".
std::string to_string(const Allowed& allowed);
/// "i+2", "3".
std::string to_string(const OrderPoint::Index& index, std::string_view variable);
/// "backward of micro-batch i on stage s".
std::string describe(const OrderPoint& point);

}  // namespace meshwright
