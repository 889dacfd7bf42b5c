// Every layout of the test models that is legal lowers to a program that can be proved right.
#include <gmock/gmock.h>

#include "base/error.h"
#include "models/test_models.h"
#include "plan/check.h"
#include "plan/facts.h"
#include "plan/lower.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

struct Case {
  const char* name;
  TestModelSizes sizes;
};
const Case kModels[] = {
    {"dense", {}},
    {"tied", {.tied = true}},
    {"few_kv_heads", {.heads = 8, .kv_heads = 2}},
    {"experts", {.experts = 8}},
    {"uneven_vocab", {.vocab = 1003}},
};

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

std::string verdict(const Graph& graph, const Degrees& degrees, std::int64_t batch, int* proved) {
  const auto segments = find_segments(graph);
  const ModelFacts facts = model_facts(graph, segments);
  if (!check_degrees(facts, degrees.devices(), batch, degrees).empty()) return {};
  Cluster cluster;
  cluster.device_kind.assign(static_cast<std::size_t>(degrees.devices()), 0);
  Plan plan = make_plan(graph, segments, cluster, {}, batch, degrees,
                        even_cuts(segments.size(), degrees.pp * degrees.vpp));
  plan.schedule = degrees.vpp > 1 ? "interleaved" : "1f1b";
  if (!check_plan(plan, graph, segments, cluster).empty()) return {};
  Program program = lower(plan, graph, segments);
  if (!has_messages(program)) add_messages(program);
  const VerifyReport report = verify(program, plan, graph, segments);
  ++*proved;
  return report.proved() ? "" : to_string(report);
}

TEST(VerifyModels, EveryLegalLayoutIsProved) {
  int proved = 0;
  int failed = 0;
  for (const Case& c : kModels) {
    const Graph graph = test_model(c.sizes);
    for (int pp : {1, 2, 4})
      for (int dp : {1, 2, 4})
        for (int tp : {1, 2, 4, 8})
          for (int cp : {1, 2})
            for (int ep : {1, 2, 4})
              for (int etp : {1, 2})
                for (bool sp : {false, true})
                  for (auto zero : {StateSharding::kNone, StateSharding::kZero1,
                                    StateSharding::kZero2, StateSharding::kZero3})
                    for (auto recompute :
                         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
                      if (pp * dp * tp * cp > 16) continue;
                      if ((sp && tp == 1) || (c.sizes.experts == 0 && ep * etp > 1)) continue;
                      const Degrees d{.pp = pp,
                                      .dp = dp,
                                      .cp = cp,
                                      .tp = tp,
                                      .sp = sp,
                                      .ep = ep,
                                      .etp = etp,
                                      .micro_batch = 1,
                                      .zero = zero,
                                      .recompute = recompute};
                      std::string text;
                      try {
                        text = verdict(graph, d, c.sizes.batch, &proved);
                      } catch (const std::exception& e) {
                        text = e.what();
                      }
                      if (!text.empty() && ++failed < 12) {
                        ADD_FAILURE() << c.name << " " << to_string(d) << "\n" << text;
                      }
                    }
  }
  EXPECT_EQ(failed, 0);
  std::printf("%d layouts\n", proved);
}

}  // namespace
}  // namespace meshwright
