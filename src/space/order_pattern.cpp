#include "space/order_pattern.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/path_pattern.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxRules = 10000;

Phase phase_of(const OrderPoint& p) {
  return p.phase == "forward"  ? Phase::kForward
         : p.phase == "weight" ? Phase::kWeight
                               : Phase::kBackward;
}

// Chunks that a point speaks of when the variable of stages has this value.
std::vector<int> chunks_of(const OrderPoint& p, int variable, const Plan& plan,
                           const std::vector<char>& holds) {
  const int stages = plan.degrees.pp;  // A stage over all devices is none of them.
  std::int64_t stage = p.stage.offset;
  if (p.stage.variable)
    stage += variable;
  else if (stage < 0)
    stage += stages;
  std::vector<int> list;
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    if (plan.chunks[c].stage == stage && holds[c] != 0) list.push_back(static_cast<int>(c));
  }
  return list;
}

std::vector<char> holders(const OrderPoint& p, const Plan& plan, const Graph& graph,
                          const std::vector<Segment>& segments) {
  std::vector<char> holds(plan.chunks.size(), p.path.empty());
  for (std::size_t c = 0; c < plan.chunks.size() && !p.path.empty(); ++c) {
    const Chunk& chunk = plan.chunks[c];
    const int first = segments[static_cast<std::size_t>(chunk.first_segment)].first_op;
    const int last = segments[static_cast<std::size_t>(chunk.last_segment) - 1].last_op;
    for (int op = first; op < last && holds[c] == 0; ++op) {
      holds[c] = path_matches(p.path, graph.ops[static_cast<std::size_t>(op)].name);
    }
  }
  return holds;
}

}  // namespace

std::vector<OrderRule> orders_of(const std::vector<OrderPattern>& patterns, const Plan& plan,
                                 const Graph& graph, const std::vector<Segment>& segments) {
  std::vector<OrderRule> rules;
  const auto add = [&](const PassSet& before, const PassSet& after) {
    if (rules.size() == kMaxRules) {
      throw Error(fmt::format("the orders come to more than {} rules", kMaxRules), {},
                  "use the same micro-batch on both sides, or fewer micro-batches");
    }
    rules.push_back({before, after});
  };
  const int stages = static_cast<int>(plan.stages.size());
  const std::int64_t m = plan.micro_batches;
  const bool weights = find_schedule(plan.schedule).splits_backward;
  for (const OrderPattern& p : patterns) {
    if (!weights && (p.before.phase == "weight" || p.after.phase == "weight")) continue;
    const std::vector<char> before_holds = holders(p.before, plan, graph, segments);
    const std::vector<char> after_holds = holders(p.after, plan, graph, segments);
    const bool stage_varies = p.before.stage.variable || p.after.stage.variable;
    // One more round on either side: s may stand for a stage that only a shifted side reaches.
    for (int s = stage_varies ? -stages : 0; s < (stage_varies ? 2 * stages : 1); ++s) {
      for (int b : chunks_of(p.before, s, plan, before_holds)) {
        for (int a : chunks_of(p.after, s, plan, after_holds)) {
          PassSet before{phase_of(p.before), b}, after{phase_of(p.after), a};
          const OrderPoint::Index x = p.before.micro_batch, y = p.after.micro_batch;
          if (x.variable && y.variable && x.offset == y.offset) {
            before.micro_batch = after.micro_batch = PassSet::kEach;
            add(before, after);
          } else if (x.variable && y.variable) {
            for (std::int64_t i = 0; i < m; ++i) {
              const std::int64_t j = i + y.offset - x.offset;
              if (j < 0 || j >= m) continue;
              before.micro_batch = static_cast<int>(i);
              after.micro_batch = static_cast<int>(j);
              add(before, after);
            }
          } else {
            const auto fixed = [&](const OrderPoint::Index& index) {
              return index.variable ? PassSet::kAll : static_cast<int>(index.offset);
            };
            before.micro_batch = fixed(x);
            after.micro_batch = fixed(y);
            if (before.micro_batch < m && after.micro_batch < m) add(before, after);
          }
        }
      }
    }
  }
  return rules;
}

}  // namespace meshwright
