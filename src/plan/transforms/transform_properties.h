#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "ops/check_ops.h"
#include "ops/gradient_flow.h"
#include "ops/graph_work.h"
#include "plan/segments.h"
#include "plan/transform.h"

// For tests: what every transform leaves as it was.

namespace meshwright {

inline void expect_equal_work(const Graph& before, const Graph& after) {
  check_graph(after);
  check_ops(after);
  EXPECT_EQ(parameter_count(after), parameter_count(before));
  const double flops = model_flops(before).value;
  EXPECT_NEAR(model_flops(after).value, flops, 1e-9 * flops);
  EXPECT_EQ(parse_graph(print_graph(after), "again"), after);
  std::set<std::string> layers;
  for (const Segment& s : find_segments(after)) {
    if (!s.is_layer) continue;
    EXPECT_TRUE(layers.insert(s.name).second) << s.name << " is torn apart";
  }
  const std::vector<bool> needed = requires_gradient(after);
  for (std::size_t i = 0; i < after.values.size(); ++i) {
    if (after.values[i].kind == ValueKind::kParameter) {
      EXPECT_TRUE(needed[i]) << after.values[i].name;
    }
  }
}

inline const Op* find_op_named(const Graph& graph, std::string_view name) {
  const auto op = std::ranges::find(graph.ops, name, &Op::name);
  return op == graph.ops.end() ? nullptr : &*op;
}

inline const Value* find_value(const Graph& graph, std::string_view name) {
  const auto value = std::ranges::find(graph.values, name, &Value::name);
  return value == graph.values.end() ? nullptr : &*value;
}

inline std::string type_of(const Graph& graph, std::string_view name) {
  const Value* value = find_value(graph, name);
  return value == nullptr ? "no such value" : to_string(value->type);
}

inline int count_kind(const Graph& graph, std::string_view kind) {
  return static_cast<int>(std::ranges::count(graph.ops, kind, &Op::kind));
}

}  // namespace meshwright
