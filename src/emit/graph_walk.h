#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace meshwright {

/// The part of a graph is not what its reader expects; `why` completes "layer x: …".
struct Unreadable {
  std::string why;
};

/// Walks the dataflow among operators first..last-1 of a graph and remembers which of them were
/// accounted for.
class GraphWalk {
 public:
  GraphWalk(const Graph& graph, int first, int last);

  /// The operator of the range that makes `value`, or null.
  const Op* maker(ValueId value) const;
  /// The operators of the range that read `value`, in order; each once.
  std::vector<const Op*> readers(ValueId value) const;
  std::vector<const Op*> of_kind(std::string_view kind) const;

  /// Accounts for an operator; any number of times.
  void take(const Op& op) { taken_.insert(&op); }
  bool taken(const Op& op) const { return taken_.contains(&op); }
  /// The maker of `value`, which must be of `kind`; accounts for it. `what` names it in the
  /// complaint. Throws Unreadable.
  const Op& take_maker(ValueId value, std::string_view kind, std::string_view what);
  /// Throws Unreadable naming the first operator that nobody accounted for.
  void expect_all_taken() const;

  const TensorType& type(ValueId value) const { return graph_.value(value).type; }
  /// Values made outside the range that its operators read, parameters and buffers left out.
  std::vector<ValueId> incoming() const;

 private:
  const Graph& graph_;
  int first_, last_;
  std::set<const Op*> taken_;
};

/// "'layers.0.attn.core' (attention)".
std::string describe(const Op& op);

}  // namespace meshwright
