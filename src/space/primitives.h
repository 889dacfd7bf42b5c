#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/rule.h"
#include "plan/plan.h"
#include "space/order_pattern.h"
#include "space/plan_space.h"

namespace meshwright {

/// Where the operators of some segments may or must not run.
struct SegmentPin {
  std::string author;
  std::vector<int> segments;  ///< Ascending.
  Placement placement;
  bool forbidden = false;
};

/// Two calls that cannot both hold.
struct Contradiction {
  std::string first, second;  ///< Authors.
  std::string message;
};

/// The three primitives compose a plan in normal form over one graph: what the roles of a layout
/// imply, and on top of it what these calls say. Every call has an author (the rule it came from).
/// The graph and segments must outlive the builder.
class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const std::vector<Segment>& segments);

  const Graph& graph() const { return graph_; }
  const std::vector<Segment>& segments() const { return segments_; }

  /// Operators that a match finds, ascending. Throws Error when there are none, with near names.
  std::vector<int> find(const OpMatch& match) const;
  /// The bound rule of an operator (of the whole batch).
  const Rule& rule(int op) const;
  /// The first operator that stands in the same place of an isomorphic segment.
  int representative(int op) const { return representative_[static_cast<std::size_t>(op)]; }
  int segment_of(int op) const { return segment_of_op_[static_cast<std::size_t>(op)]; }

  const std::vector<SegmentPin>& pins() const { return pins_; }
  const std::vector<OrderPattern>& order() const { return order_; }
  const std::vector<Contradiction>& contradictions() const { return contradictions_; }
  /// The overrides composed so far; null = none.
  std::shared_ptr<const Overrides> overrides() const;

 private:
  friend std::vector<int> op_trans(PlanBuilder&, const OpMatch&, const OpOverride&,
                                   std::string_view);
  friend std::vector<int> op_trans(PlanBuilder&, const OpMatch&, Recompute, std::string_view);
  friend std::vector<int> op_assign(PlanBuilder&, const OpMatch&, const Placement&,
                                    std::string_view, bool);
  friend void op_order(PlanBuilder&, const OrderPattern&, std::string_view);

  // What one operator has been told: splits by factor index, and by whom.
  struct Told {
    struct Split {
      OpOverride::Split split;
      int author;
    };
    std::map<int, Split> splits;
    int replicate = -1;  // Author.
  };
  std::vector<int> segments_of(const std::vector<int>& ops) const;
  void contradict(int first, int second, std::string message);
  int author(std::string_view name);

  const Graph& graph_;
  const std::vector<Segment>& segments_;
  std::vector<int> segment_of_op_, representative_;
  mutable std::map<int, Rule> rules_;
  std::vector<std::string> authors_;
  std::map<int, Told> told_;
  std::map<int, std::pair<Recompute, int>> recompute_;  // Segment -> mode, author.
  std::vector<SegmentPin> pins_;
  std::vector<OrderPattern> order_;
  std::vector<Contradiction> contradictions_;
};

/// op-trans: the factors of matched operators are split over exactly these axes; `replicate` drops
/// all other splits. Factors that an operator lacks are left out for it. Returns the operators.
/// Throws Error when nothing matches, or no matched operator has a factor.
std::vector<int> op_trans(PlanBuilder& builder, const OpMatch& match, const OpOverride& choice,
                          std::string_view author = {});
/// op-trans recompute: what the segments of matched operators keep for the backward pass.
std::vector<int> op_trans(PlanBuilder& builder, const OpMatch& match, Recompute recompute,
                          std::string_view author = {});
/// op-assign: the segments of matched operators run on one of these stages, or on devices within
/// these ranges (`forbidden`: on none of them).
std::vector<int> op_assign(PlanBuilder& builder, const OpMatch& match, const Placement& placement,
                           std::string_view author = {}, bool forbidden = false);
/// op-order. Throws Error when the orders so far and this one go round in a circle.
void op_order(PlanBuilder& builder, const OrderPattern& rule, std::string_view author = {});

/// Composes the plan of a layout: its stages and roles, cut where `cuts` says, with everything that
/// the builder was told. Throws Error when the layout is illegal or breaks a pin, or when two calls
/// contradict one another.
Plan build(const PlanBuilder& builder, const Cluster& cluster, const Training& training,
           std::int64_t global_batch, const Degrees& degrees, const std::vector<int>& cuts);

/// Whether a placement takes a stage of a pipeline with `stages` stages on `devices` devices in;
/// `mesh` is the stage's.
bool takes_in(const Placement& placement, int stage, int stages, const Mesh& mesh, int devices);

}  // namespace meshwright
