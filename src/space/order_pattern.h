#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace meshwright {

/// One side of an op-order: passes of chunks of a pipeline. Both sides of a pattern share the
/// variables i (micro-batch) and s (stage).
struct OrderPoint {
  /// A number, or a number on top of the variable: "3", "i", "i+2".
  struct Index {
    bool variable = true;
    std::int64_t offset = 0;
    friend bool operator==(const Index&, const Index&) = default;
  };
  std::string phase = "forward";  ///< "forward", "backward" or "weight".
  Index micro_batch;
  Index stage;       ///< Negative numbers count from the last stage: -1.
  std::string path;  ///< Pattern: the chunks that hold such operators; empty = every chunk.

  friend bool operator==(const OrderPoint&, const OrderPoint&) = default;
};

/// An op-order: wherever both sides exist, `before` ends before `after` starts.
struct OrderPattern {
  OrderPoint before, after;
  friend bool operator==(const OrderPattern&, const OrderPattern&) = default;
};

/// The rules of order that patterns come to for the chunks and micro-batches of a plan. Throws
/// Error when they are more than a plan may have.
std::vector<OrderRule> orders_of(const std::vector<OrderPattern>& patterns, const Plan& plan,
                                 const Graph& graph, const std::vector<Segment>& segments);

}  // namespace meshwright
