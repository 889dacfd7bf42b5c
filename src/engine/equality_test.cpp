// Every plan computes what the model on one device computes: loss and parameters after three steps,
// float64, relative difference at most 1e-12.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/thread_run.h"
#include "models/random_plans.h"
#include "models/test_models.h"
#include "ops/builder.h"
#include "plan/check.h"
#include "plan/lower.h"

namespace meshwright {
namespace {

constexpr double kTolerance = 1e-12;

ExecutorSettings sgd_settings() {
  ExecutorSettings settings;
  settings.optimizer.learning_rate = 0.1;
  settings.clip_norm = 0.5;
  return settings;
}

class RandomPlans : public testing::TestWithParam<int> {};

// Shards of a hundred plans each.
TEST_P(RandomPlans, EqualOneDevice) {
  for (int i = 0; i < 100; ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * 100 + i);
    RandomPlan r = random_plan(seed);
    r.plan.training.optimizer = "sgd";
    const Program program = lower(r.plan, r.graph, r.segments);
    try {
      const RunDifference d = run_threads(program, r.plan, r.graph, r.segments, 2, sgd_settings());
      EXPECT_LE(d.loss, kTolerance) << "seed " << seed;
      EXPECT_LE(d.parameters, kTolerance) << "seed " << seed << " " << d.worst;
    } catch (const std::exception& e) {
      ADD_FAILURE() << "seed " << seed << ": " << e.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPlans, testing::Range(0, 5));

// Without the tolerance anything would pass: a program with one collective left out must not.
TEST(Equality, SeesALostReduction) {
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    RandomPlan r = random_plan(seed);
    r.plan.training.optimizer = "sgd";
    Program program = lower(r.plan, r.graph, r.segments);
    bool changed = false;
    for (StageProgram& s : program.stages) {
      for (Instr& instr : s.step) {
        if (instr.kind != InstrKind::kCollective || instr.tie >= 0 ||
            instr.collective != CollectiveKind::kAllReduce) {
          continue;
        }
        instr.group = {};  // Alone with itself.
        changed = true;
      }
    }
    if (!changed) continue;
    const RunDifference d = run_threads(program, r.plan, r.graph, r.segments, 1, sgd_settings());
    EXPECT_GT(d.parameters, 1e-6) << "seed " << seed;
    ++seen;
  }
  EXPECT_GE(seen, 2);
}

struct OptimizerCase {
  const char* optimizer;
  const char* dtype;
  double tolerance;
};
void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.optimizer << " " << c.dtype; }
class Optimizers : public testing::TestWithParam<OptimizerCase> {};

// State sharded in every way, dropout drawn by place, and narrower numbers: bf16 with an fp32
// master copy loses digits in the order of its sums only. Adam divides by the root of the second
// moment and so amplifies rounding where gradients are nearly nothing.
TEST_P(Optimizers, EveryStateSharding) {
  const OptimizerCase& c = GetParam();
  const Graph graph = test_model(kSmallTestModel);
  const std::vector<Segment> segments = find_segments(graph);
  for (StateSharding state : {StateSharding::kNone, StateSharding::kZero1, StateSharding::kZero2,
                              StateSharding::kZero3}) {
    Degrees degrees;
    degrees.dp = 2;
    degrees.tp = 2;
    degrees.sp = true;
    degrees.zero = state;
    Training training;
    training.optimizer = c.optimizer;
    const Plan plan =
        make_plan(graph, segments, read_cluster("a100-80:1x4"), training, 8, degrees, {});
    ExecutorSettings settings;
    settings.numerics = parse_numerics(c.dtype);
    settings.clip_norm = 1;
    const RunDifference d =
        run_threads(lower(plan, graph, segments), plan, graph, segments, 3, settings);
    EXPECT_LE(d.loss, c.tolerance) << state_sharding_name(state);
    EXPECT_LE(d.parameters, c.tolerance) << state_sharding_name(state) << " " << d.worst;
    EXPECT_LT(d.losses.back(), 1.5 * d.losses.front());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers,
                         testing::Values(OptimizerCase{"sgd", "float64", 1e-12},
                                         OptimizerCase{"adam", "float64", 1e-9},
                                         OptimizerCase{"adamw", "float64", 1e-9},
                                         OptimizerCase{"sgd", "float32", 1e-4},
                                         OptimizerCase{"sgd", "bfloat16", 0.05}));

// Dropout draws by an element's place in the global batch: the mask does not depend on the plan.
TEST(Equality, DropoutDoesNotDependOnThePlan) {
  GraphBuilder b("dropout", DType::kF32);
  const ValueId ids = b.input("ids", {DType::kI64, {{"batch", 8}, {"seq", 8}}});
  const ValueId labels = b.input("labels", {DType::kI64, {{"batch", 8}, {"seq", 8}}});
  const ValueId table = b.parameter("embed.weight", {{"vocab", 32}, {"hidden", 16}});
  ValueId x = b.op("embedding", "embed", {ids, table});
  for (int layer = 0; layer < 2; ++layer) {
    const auto scope = b.scope(fmt::format("layers.{}", layer));
    ValueId y = b.linear("up", x, {"ffn", 32}, true);
    y = b.op("dropout", "drop_inner", {b.op("gelu", "act", {y})}, {{"p", 0.3}});
    y = b.linear("down", y, {"hidden", 16}, true);
    x = b.op("add", "residual", {x, b.op("dropout", "drop", {y}, {{"p", 0.2}})});
  }
  b.op("cross_entropy", "loss", {b.linear("head", x, {"vocab", 32}, false), labels});
  const Graph graph = b.finish();
  const std::vector<Segment> segments = find_segments(graph);
  Training training;
  training.dtype = DType::kF32;
  training.optimizer = "sgd";
  std::vector<double> first;
  for (int micro_batch : {1, 2}) {
    for (int tp : {1, 2}) {
      for (int pp : {1, 2}) {
        Degrees degrees;
        degrees.dp = 2;
        degrees.tp = tp;
        degrees.pp = pp;
        degrees.micro_batch = micro_batch;
        const Plan plan = make_plan(graph, segments, read_cluster("a100-80:1x8"), training, 8,
                                    degrees, pp == 2 ? std::vector<int>{2} : std::vector<int>{});
        const RunDifference d =
            run_threads(lower(plan, graph, segments), plan, graph, segments, 2, sgd_settings());
        EXPECT_LE(d.loss, kTolerance);
        EXPECT_LE(d.parameters, kTolerance);
        // Also between plans whose micro-batches differ.
        if (first.empty()) first = d.losses;
        for (std::size_t i = 0; i < first.size(); ++i) {
          EXPECT_NEAR(d.losses[i], first[i], 1e-12 * first[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshwright
