#include "verify/test_plans.h"

#include "plan/check.h"
#include "plan/facts.h"

namespace meshwright {
namespace {

std::vector<int> even_cuts(std::size_t segments, int parts) {
  std::vector<int> cuts;
  for (int i = 1; i < parts; ++i) {
    cuts.push_back(static_cast<int>(static_cast<std::size_t>(i) * segments) / parts);
  }
  return cuts;
}

// Sends right after what they send, receives right before what needs them.
void add_messages(Program& program) {
  const auto stage = [&](int chunk) {
    return program.chunks[static_cast<std::size_t>(chunk)].stage;
  };
  for (Lane& lane : program.lanes) {
    std::vector<ScheduleItem> order, ends;
    for (const ScheduleItem& item : lane.order) {
      const auto each = [&](auto&& visit) {
        for (std::size_t t = 0; t < program.transfers.size(); ++t) {
          const bool backward = item.phase == Phase::kBackward;
          if (program.transfers[t].gradient != backward || !is_pass(item.phase)) continue;
          visit(static_cast<int>(t), program.transfers[t]);
        }
      };
      each([&](int t, const Transfer& transfer) {
        if (transfer.to_chunk != item.chunk || stage(item.chunk) != lane.stages[0]) return;
        order.push_back({Phase::kReceive, t, item.micro_batch});
        order.push_back({Phase::kReceiveWait, t, item.micro_batch});
      });
      order.push_back(item);
      each([&](int t, const Transfer& transfer) {
        if (transfer.from_chunk != item.chunk || stage(item.chunk) != lane.stages[0]) return;
        order.push_back({Phase::kSend, t, item.micro_batch});
        ends.push_back({Phase::kSendWait, t, item.micro_batch});
      });
    }
    order.insert(order.end(), ends.begin(), ends.end());
    lane.order = std::move(order);
  }
}

bool has_messages(const Program& program) {
  for (const Lane& lane : program.lanes) {
    for (const ScheduleItem& item : lane.order) {
      if (!is_pass(item.phase)) return true;
    }
  }
  return program.transfers.empty();
}

}  // namespace

std::optional<Plan> test_plan(const Graph& graph, const std::vector<Segment>& segments,
                              const Degrees& degrees, std::int64_t global_batch) {
  const ModelFacts facts = model_facts(graph, segments);
  if (!check_degrees(facts, degrees.devices(), global_batch, degrees).empty()) return std::nullopt;
  Cluster cluster;
  cluster.device_kind.assign(static_cast<std::size_t>(degrees.devices()), 0);
  Plan plan = make_plan(graph, segments, cluster, {}, global_batch, degrees,
                        even_cuts(segments.size(), degrees.pp * degrees.vpp));
  plan.schedule = degrees.vpp > 1 ? "interleaved" : "1f1b";
  if (!check_plan(plan, graph, segments, cluster).empty()) return std::nullopt;
  return plan;
}

Program test_program(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments) {
  Program program = lower(plan, graph, segments);
  if (!has_messages(program)) add_messages(program);
  return program;
}

}  // namespace meshwright
