// Models by name under layouts of every kind: each that is legal lowers and is proved. With
// MESHWRIGHT_ALL_MODELS set, all names; otherwise one of each family.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "import/import.h"
#include "plan/check.h"
#include "plan/facts.h"
#include "plan/lower.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

const Degrees kLayouts[] = {
    {.dp = 8},
    {.dp = 4, .zero = StateSharding::kZero1},
    {.dp = 8, .zero = StateSharding::kZero2},
    {.dp = 8, .zero = StateSharding::kZero3, .recompute = Recompute::kFull},
    {.tp = 8},
    {.tp = 4, .sp = true, .recompute = Recompute::kSelective},
    {.dp = 2, .tp = 2, .sp = true, .zero = StateSharding::kZero3},
    {.cp = 4},
    {.dp = 2, .cp = 2, .tp = 2, .sp = true, .zero = StateSharding::kZero1},
    {.pp = 4},
    {.pp = 2, .dp = 2, .tp = 2, .zero = StateSharding::kZero1},
    {.pp = 2, .vpp = 2, .dp = 2, .cp = 2},
    {.dp = 8, .ep = 8},
    {.pp = 2, .dp = 4, .tp = 2, .sp = true, .ep = 4, .etp = 2, .zero = StateSharding::kZero2},
};

TEST(ProveModels, EveryLegalLayoutIsProved) {
  const bool all = std::getenv("MESHWRIGHT_ALL_MODELS") != nullptr;
  const char* kSome[] = {"llama-tiny",  "gpt2",       "t5-small",       "bart-base",
                         "bert-base",   "gpt-j-6b",   "mixtral-8x7b",   "deepseek-v2-lite",
                         "vit-base",    "gemma-2-2b", "evoformer-tiny", "bloom-560m",
                         "gpt-oss-20b", "falcon-7b",  "swin-tiny"};
  int proved = 0, failed = 0, refused = 0, models = 0;
  for (const NamedModel& named : named_models()) {
    const bool wanted = all || std::find_if(std::begin(kSome), std::end(kSome), [&](const char* s) {
                                 return named.name == s;
                               }) != std::end(kSome);
    // A contrastive loss compares every sample with all others of the batch: no micro-batches.
    if (!wanted || named.name.starts_with("clip-")) continue;
    ++models;
    ImportOptions options;
    options.global_batch = 16;
    const Model model = import_model(named.name, options);
    const auto segments = find_segments(model.graph);
    const ModelFacts facts = model_facts(model.graph, segments);
    for (const Degrees& degrees : kLayouts) {
      std::string text;
      try {
        if (!check_degrees(facts, degrees.devices(), 16, degrees).empty()) continue;
        Cluster cluster;
        cluster.device_kind.assign(static_cast<std::size_t>(degrees.devices()), 0);
        std::vector<int> cuts;
        const int parts = degrees.pp * degrees.vpp;
        for (int i = 1; i < parts; ++i) {
          cuts.push_back(static_cast<int>(segments.size()) * i / parts);
        }
        const Plan plan = make_plan(model.graph, segments, cluster, {}, 16, degrees, cuts);
        if (!check_plan(plan, model.graph, segments, cluster).empty()) continue;
        const Program program = lower(plan, model.graph, segments);
        const VerifyReport report = verify(program, plan, model.graph, segments);
        if (!report.proved()) text = to_string(report);
        ++proved;
      } catch (const Error&) {
        ++refused;  // By the lowering, with a reason.
      } catch (const std::exception& e) {
        text = e.what();
      }
      if (!text.empty() && ++failed <= 40) {
        ADD_FAILURE() << named.name << " " << to_string(degrees) << "\n" << text;
      }
    }
  }
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(refused, 0);
  std::printf("%d layouts of %d models, %d refused\n", proved, models, refused);
}

}  // namespace
}  // namespace meshwright
