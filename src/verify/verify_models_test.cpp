// Every layout of the test models that is legal lowers to a program that can be proved right.
#include <gmock/gmock.h>

#include "models/test_models.h"
#include "verify/test_plans.h"
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

std::string verdict(const Graph& graph, const Degrees& degrees, std::int64_t batch, int* proved) {
  const auto segments = find_segments(graph);
  const auto plan = test_plan(graph, segments, degrees, batch);
  if (!plan) return {};
  const Program program = lower(*plan, graph, segments);
  const VerifyReport report = verify(program, *plan, graph, segments);
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
                      if (recompute != Recompute::kNone && zero != StateSharding::kNone &&
                          zero != StateSharding::kZero3) {
                        continue;
                      }
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
