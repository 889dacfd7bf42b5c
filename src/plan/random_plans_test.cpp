#include "models/random_plans.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ops/check_ops.h"
#include "plan/lower.h"

namespace meshwright {
namespace {

// Every legal plan lowers: its programs only read what is there.
RC_GTEST_PROP(RandomPlans, Lower, (std::uint64_t seed)) {
  const RandomPlan made = random_plan(seed);
  check_graph(made.graph);
  check_ops(made.graph);
  const Program program = lower(made.plan, made.graph, made.segments);
  RC_ASSERT(program.chunks.size() == made.plan.chunks.size());
  for (const SegmentProgram& p : program.segments) {
    std::vector<char> there(p.buffers.size());
    for (const auto* list : {&p.arguments, &p.gradient_arguments}) {
      for (std::int32_t b : *list) there[static_cast<std::size_t>(b)] = 1;
    }
    for (const auto* list : {&p.forward, &p.backward, &p.weight}) {
      for (const Instr& instr : *list) {
        for (std::int32_t b : p.in(instr)) {
          if (b < 0) continue;
          const ValueKind kind =
              made.graph.value(p.buffers[static_cast<std::size_t>(b)].value).kind;
          const bool data = kind == ValueKind::kInput || kind == ValueKind::kBuffer;
          RC_ASSERT((there[static_cast<std::size_t>(b)] || data));
          if (instr.kind == InstrKind::kFree) there[static_cast<std::size_t>(b)] = 0;
        }
        for (std::int32_t b : p.out(instr)) {
          if (b >= 0) there[static_cast<std::size_t>(b)] = 1;
        }
      }
    }
    for (const auto* list : {&p.results, &p.gradient_results}) {
      for (std::int32_t b : *list) RC_ASSERT(there[static_cast<std::size_t>(b)]);
    }
  }
}

}  // namespace
}  // namespace meshwright
