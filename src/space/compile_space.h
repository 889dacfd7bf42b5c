#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/facts.h"
#include "plan/micro_batch_tables.h"
#include "space/primitives.h"

namespace meshwright {

/// Operators that one rule says the same about: isomorphic, and matched by the same rules.
struct OpGroup {
  int op = 0;              ///< One of them.
  std::vector<int> rules;  ///< Indices into PlanSpace::rules of those that limit its splits.
  std::int64_t count = 0;
};

/// What became of one rule.
struct RuleReach {
  std::int64_t ops = 0;              ///< Operators matched.
  std::vector<std::string> factors;  ///< Labels that it speaks of and matched operators have.
};

/// A plan space on one model: what a search obeys.
struct CompiledSpace {
  PlanSpace space;
  Restrictions restrictions;                   ///< What `degrees` says.
  std::vector<std::string> schedules;          ///< Allowed ones; empty = what vpp implies.
  std::shared_ptr<const Overrides> overrides;  ///< Null = none.
  std::vector<OrderPattern> order;
  std::vector<SegmentPin> pins;
  std::vector<OpGroup> groups;   ///< Every operator is in one.
  std::vector<RuleReach> reach;  ///< By rule.
  std::vector<Contradiction> contradictions;
};

/// Runs the rules of a space as calls of the three primitives (primitives.h) on a graph to which
/// its transforms have been applied. Throws Error placed at the rule: it matches nothing, speaks of
/// a factor that no matched operator has, or of more parts than a factor has units. Rules that
/// contradict one another are no error here: see `contradictions`.
CompiledSpace compile_space(const PlanSpace& space, const Graph& graph,
                            const std::vector<Segment>& segments);

/// What both allow. `clash` says where nothing is left; empty = something is.
Restrictions both(const Restrictions& a, const Restrictions& b, std::string& clash);

/// Holds layouts against the rules of a space. Answers are kept: layouts that differ only in what
/// no strategy depends on share them. The references must outlive it.
class LayoutFilter {
 public:
  LayoutFilter(const CompiledSpace& space, const Graph& graph, const ModelFacts& facts);

  /// Index of the first rule that the layout breaks; -1 = none.
  int broken_rule(const Degrees& degrees);

  /// Whether a segment may run on a stage of the layout.
  bool may_run(int segment, int stage, const Degrees& degrees) const;
  bool pins_segments() const { return !space_.pins.empty(); }

 private:
  int broken_split(const Degrees& degrees);

  const CompiledSpace& space_;
  const Graph& graph_;
  const ModelFacts& facts_;
  MicroBatchTables tables_;
  std::map<std::vector<std::int64_t>, int> known_;
  std::vector<std::vector<int>> pins_of_segment_;
};

}  // namespace meshwright
