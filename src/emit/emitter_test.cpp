#include "emit/emitter.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>
#include <set>

#include "base/error.h"
#include "emit/megatron_groups.h"
#include "emit/megatron_plan.h"
#include "emit/megatron_rules.h"
#include "emit/shell_script.h"
#include "models/test_models.h"
#include "plan/check.h"

namespace meshwright {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A model, a cluster and a plan for them, kept together.
struct Case {
  Graph graph;
  std::vector<Segment> segments;
  Cluster cluster;
  Plan plan;

  EmitInput input() const { return {plan, graph, segments, cluster, "test"}; }
  MegatronPlanReading read() const { return read_megatron_plan(input()); }
};

/// Chunks of equal numbers of layers.
std::vector<int> even_cuts(const std::vector<Segment>& segments, int chunks) {
  std::vector<int> cuts;
  const int layers = static_cast<int>(segments.size()) - 2;
  for (int c = 1; c < chunks; ++c) cuts.push_back(1 + layers * c / chunks);
  return cuts;
}

Case make_case(const TestModelSizes& sizes, const Degrees& degrees, std::string_view cluster,
               const Training& training = {}) {
  Case c{test_model(sizes), {}, read_cluster(cluster), {}};
  c.segments = find_segments(c.graph);
  c.plan = make_plan(c.graph, c.segments, c.cluster, training, sizes.batch, degrees,
                     even_cuts(c.segments, degrees.pp * degrees.vpp));
  return c;
}

const std::string& file(const std::vector<EmittedFile>& files, std::string_view path) {
  for (const EmittedFile& f : files) {
    if (f.path == path) return f.content;
  }
  throw InternalError("no such file");
}

/// The options of the emitted script, as a shell would pass them.
MegatronCommand launched(const Case& c) {
  const ShellCommand script =
      read_shell_script(file(kMegatronEmitter.emit(c.input()), "launch.sh"));
  std::vector<std::string> words;
  for (const auto& [name, value] : script.env) words.push_back(name + "=" + value);
  words.insert(words.end(), script.words.begin(), script.words.end());
  return parse_megatron_command(words);
}

TEST(Emitters, AreFoundByName) {
  EXPECT_EQ(find_emitter("megatron").name, "megatron");
  try {
    find_emitter("megatrom");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "target: unknown target \"megatrom\" (known: megatron)");
  }
}

TEST(MegatronEmitter, SaysModelAndLayoutInMegatronsWords) {
  const Case c = make_case({},
                           {.pp = 2,
                            .dp = 2,
                            .cp = 2,
                            .tp = 2,
                            .sp = true,
                            .micro_batch = 2,
                            .zero = StateSharding::kZero1,
                            .recompute = Recompute::kSelective},
                           "dgx-h100:2");
  const auto reading = c.read();
  ASSERT_THAT(reading.faults, IsEmpty());
  EXPECT_THAT(
      to_argv(reading.plan.model),
      ElementsAre("--num-layers", "4", "--hidden-size", "64", "--ffn-hidden-size", "256",
                  "--num-attention-heads", "8", "--kv-channels", "8", "--group-query-attention",
                  "--num-query-groups", "4", "--seq-length", "128", "--max-position-embeddings",
                  "128", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
                  "--untie-embeddings-and-output-weights", "--vocab-size", "1000",
                  "--normalization", "RMSNorm", "--hidden-dropout", "0", "--attention-dropout",
                  "0"));
  EXPECT_THAT(
      to_argv(reading.plan.layout),
      ElementsAre("--bf16", "--micro-batch-size", "2", "--global-batch-size", "16",
                  "--tensor-model-parallel-size", "2", "--sequence-parallel",
                  "--pipeline-model-parallel-size", "2", "--pipeline-model-parallel-layout",
                  "Ett|ttL", "--context-parallel-size", "2", "--optimizer", "adam",
                  "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather",
                  "--recompute-granularity", "selective", "--recompute-modules", "core_attn"));
  const MegatronCommand command = launched(c);
  EXPECT_EQ(command.world_size, 16);
  EXPECT_EQ(command.env.at("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
}

TEST(MegatronEmitter, WritesHostsAndRanks) {
  const Case c = make_case({}, {.pp = 2, .dp = 2, .tp = 2, .micro_batch = 2}, "h100:2x4");
  const auto files = kMegatronEmitter.emit(c.input());
  EXPECT_EQ(file(files, "hostfile"), "host0 slots=4\nhost1 slots=4\n");
  EXPECT_EQ(file(files, "ranks.csv"),
            "rank,host,local_device,pp,dp,cp,tp,ep,etp\n"
            "0,host0,0,0,0,0,0,0,0\n1,host0,1,0,0,0,1,0,0\n"
            "2,host0,2,0,1,0,0,0,0\n3,host0,3,0,1,0,1,0,0\n"
            "4,host1,0,1,0,0,0,0,0\n5,host1,1,1,0,0,1,0,0\n"
            "6,host1,2,1,1,0,0,0,0\n7,host1,3,1,1,0,1,0,0\n");
  EXPECT_THAT(file(files, "launch.sh"),
              HasSubstr("exec torchrun --nnodes 2 --nproc-per-node 4 --node-rank"));
}

TEST(MegatronEmitter, ExpertsAndFsdp) {
  const Case c =
      make_case({.experts = 8}, {.dp = 8, .ep = 4, .micro_batch = 2, .zero = StateSharding::kZero3},
                "dgx-h100:1");
  const auto reading = c.read();
  ASSERT_THAT(reading.faults, IsEmpty());
  const MegatronArgs& a = reading.plan.whole;
  EXPECT_EQ(a.num_experts, 8);
  EXPECT_EQ(a.moe_ffn_hidden_size, 256);
  EXPECT_EQ(a.expert_model_parallel_size, 4);
  EXPECT_EQ(a.expert_tensor_parallel_size, 1);
  EXPECT_TRUE(a.use_megatron_fsdp);
  EXPECT_EQ(a.data_parallel_sharding_strategy, "optim_grads_params");
  EXPECT_EQ(a.ckpt_format, "fsdp_dtensor");
  const std::string script = file(kMegatronEmitter.emit(c.input()), "launch.sh");
  EXPECT_THAT(script, HasSubstr("unset CUDA_DEVICE_MAX_CONNECTIONS"));
  EXPECT_THAT(script, Not(HasSubstr("export CUDA_DEVICE_MAX_CONNECTIONS")));
}

TEST(MegatronEmitter, HybridShardingIsInstances) {
  const Case c =
      make_case({}, {.dp = 16, .micro_batch = 1, .zero = StateSharding::kZero3, .zero_group = 8},
                "dgx-h100:2");
  const auto reading = c.read();
  ASSERT_THAT(reading.faults, IsEmpty());
  EXPECT_EQ(reading.plan.whole.num_distributed_optimizer_instances, 2);
}

TEST(MegatronEmitter, PrecisionAndOptimizer) {
  const Degrees degrees{.dp = 8, .micro_batch = 2, .zero = StateSharding::kZero1};
  const auto flags = [&](const Training& t) {
    return to_argv(make_case({}, degrees, "dgx-h100:1", t).read().plan.layout);
  };
  EXPECT_THAT(flags({.dtype = DType::kF16}), Contains("--accumulate-allreduce-grads-in-fp32"));
  EXPECT_THAT(flags({.gradient_dtype = DType::kBf16}), Contains("--grad-reduce-in-bf16"));
  EXPECT_THAT(flags({.dtype = DType::kF8}), Contains("--fp8-format"));
  EXPECT_THAT(make_case({}, degrees, "dgx-h100:1", {.optimizer = "sgd"}).read().faults,
              ElementsAre(HasSubstr("takes Adam and not SGD")));
  EXPECT_THAT(make_case({}, degrees, "dgx-a100:1", {.dtype = DType::kF8}).read().faults,
              ElementsAre(HasSubstr("has no fp8")));
  EXPECT_THAT(make_case({}, degrees, "cpu:8").read().faults,
              ElementsAre(HasSubstr("runs on CUDA devices")));
}

TEST(MegatronEmitter, SaysWhatThePlanHasThatMegatronHasNot) {
  const Degrees degrees{
      .pp = 2, .dp = 2, .tp = 2, .sp = true, .micro_batch = 2, .zero = StateSharding::kZero1};
  const auto faults = [&](const std::function<void(Plan&)>& change) {
    Case c = make_case({}, degrees, "dgx-h100:1");
    change(c.plan);
    return kMegatronEmitter.why_not(c.input());
  };
  EXPECT_THAT(faults([](Plan&) {}), IsEmpty());
  EXPECT_THAT(faults([](Plan& p) { p.schedule = "gpipe"; }),
              ElementsAre("schedule 'gpipe' is none of Megatron's (1f1b and interleaved)"));
  EXPECT_THAT(faults([](Plan& p) { p.stages[1].recompute = Recompute::kFull; }),
              ElementsAre("stages 0 and 1 differ in what is recomputed"));
  EXPECT_THAT(faults([](Plan& p) { std::swap(p.stages[1].roles.data, p.stages[1].roles.context); }),
              ElementsAre("stages 0 and 1 differ in the data degree (2 and 1)"));
  EXPECT_THAT(faults([](Plan& p) { p.stages[1].roles.data = {}; }),
              ElementsAre(HasSubstr("stage 1: axis 'dp' has none of the roles")));
  EXPECT_THAT(faults([](Plan& p) { std::swap(p.chunks[0].stage, p.chunks[1].stage); }),
              ElementsAre(HasSubstr("stages do not take turns")));
  EXPECT_THAT(faults([](Plan& p) { p.micro_batches = 3; }),
              ElementsAre(HasSubstr("global batch 16 is not split evenly over 3 micro-batches")));
  EXPECT_THAT(faults([](Plan& p) { p.stages[0].state_axes = p.stages[0].roles.tensor; }),
              Contains("stage 0: state is not sharded over neighbouring replicas"));
  EXPECT_THAT(faults([](Plan& p) { p.training.optimizer = "lion"; }),
              ElementsAre("optimizer \"lion\" is none of sgd, adam and adamw"));

  Case c = make_case({}, degrees, "dgx-h100:1");
  c.plan.schedule = "gpipe";
  EXPECT_THROW(kMegatronEmitter.emit(c.input()), Error);
  c = make_case({}, degrees, "dgx-h100:1");
  c.cluster.hosts[0] = "h$(reboot)";
  EXPECT_THAT(c.read().faults, ElementsAre("\"h$(reboot)\" is no name of a host"));
}

// Ranks of a dense model with context parallelism are refused in the order tp-cp-pp-dp (C2), so
// they keep the usual order and are started one by one where the plan wants them.
TEST(MegatronEmitter, PlacesRanksThatTorchrunCannot) {
  const Case c = make_case(
      {.seq = 256}, {.pp = 2, .dp = 2, .cp = 2, .tp = 2, .micro_batch = 2, .pp_inside_dp = true},
      "dgx-h100:2");
  const auto reading = c.read();
  ASSERT_THAT(reading.faults, IsEmpty());
  EXPECT_FALSE(reading.plan.torchrun);
  EXPECT_EQ(reading.plan.order, RankOrder::kDpBeforePp);
  const MegatronCommand command = launched(c);
  EXPECT_EQ(command.world_size, 16);
  const Case dense = make_case(
      {}, {.pp = 2, .dp = 4, .tp = 2, .micro_batch = 2, .pp_inside_dp = true}, "dgx-h100:2");
  EXPECT_TRUE(dense.read().plan.whole.use_tp_pp_dp_mapping);
  EXPECT_TRUE(dense.read().plan.torchrun);
}

/// The groups of devices along `axes` of every stage.
std::set<std::set<int>> mesh_groups(const Plan& plan, AxisList Roles::* role) {
  std::set<std::set<int>> groups;
  for (const Stage& stage : plan.stages) {
    const AxisList& list = stage.roles.*role;
    AxisList others;
    for (int a = 0; a < static_cast<int>(stage.mesh.axes.size()); ++a) {
      if (!list.contains(a)) others.push_back(a);
    }
    for (DeviceId first : stage.mesh.group(others)) {
      std::set<int> group;
      for (DeviceId device : stage.mesh.group(list)) {
        group.insert(first.value + device.value - stage.mesh.first_device);
      }
      groups.insert(std::move(group));
    }
  }
  return groups;
}

/// The same as Megatron forms them among ranks, with ranks replaced by their devices.
std::set<std::set<int>> rank_groups(const MegatronPlan& plan, MegatronGrid grid,
                                    std::string_view axes) {
  const PlanGrid& g = plan.grid;
  const MegatronDegrees degrees{.world = g.ranks(),
                                .tp = g.tp,
                                .cp = g.cp,
                                .pp = g.pp,
                                .ep = g.ep,
                                .etp = g.etp,
                                .pp_before_dp = plan.order == RankOrder::kPpBeforeDp};
  std::set<std::set<int>> groups;
  for (const auto& ranks : megatron_rank_groups(degrees, grid, axes)) {
    std::set<int> group;
    for (std::int64_t rank : ranks) {
      group.insert(plan.devices[static_cast<std::size_t>(rank)].value);
    }
    groups.insert(std::move(group));
  }
  return groups;
}

// Whatever is emitted, Megatron accepts; it builds the plan's cut and the plan's groups of devices.
TEST(MegatronEmitter, EmitsWhatMegatronAcceptsOrSaysWhyNot) {
  std::mt19937 random(20);
  const auto pick = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() +
             std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random));
  };
  int emitted = 0, refused = 0, one_by_one = 0;
  for (int round = 0; emitted + refused < 400; ++round) {
    ASSERT_LT(round, 100000);
    TestModelSizes sizes;
    sizes.layers = pick({4, 6, 7, 8});
    sizes.kv_heads = pick({1, 2, 4, 8});
    sizes.experts = pick({0, 8});
    sizes.batch = 16 * pick({1, 2, 3});
    sizes.tied = pick({true, false});
    Degrees d;
    d.pp = pick({1, 1, 2, 3, 4});
    d.vpp = d.pp == 1 ? 1 : pick({1, 1, 2});
    d.tp = pick({1, 2, 4});
    d.cp = pick({1, 1, 2});
    d.dp = pick({1, 2, 4, 8});
    d.sp = pick({true, false});
    d.ep = sizes.experts == 0 ? 1 : pick({1, 2, 4, 8});
    d.etp = sizes.experts == 0 ? 1 : pick({1, 2});
    d.micro_batch = pick({1, 2, 3});
    d.zero = pick({StateSharding::kNone, StateSharding::kZero1, StateSharding::kZero1,
                   StateSharding::kZero2, StateSharding::kZero3});
    d.zero_group = d.zero == StateSharding::kNone ? 0 : pick({0, 0, 2});
    d.recompute = pick({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
    d.pp_inside_dp = pick({true, false});
    const char* cluster = pick({"dgx-h100:1", "dgx-h100:4", "a100-80:3x4@ib200", "b200:2x8"});

    Case c{test_model(sizes), {}, read_cluster(cluster), {}};
    c.segments = find_segments(c.graph);
    const ModelFacts facts = model_facts(c.graph, c.segments);
    if (!degrees_legal(facts, c.cluster.device_count(), sizes.batch, d)) continue;
    // Some cut of the segments, chunks as uneven as they like.
    std::vector<int> all, cuts;
    for (int i = 1; i < static_cast<int>(c.segments.size()); ++i) all.push_back(i);
    std::ranges::sample(all, std::back_inserter(cuts), d.pp * d.vpp - 1, random);
    try {
      c.plan = make_plan(c.graph, c.segments, c.cluster, {}, sizes.batch, d, cuts);
    } catch (const Error&) {
      continue;  // Groups that no mesh has.
    }
    SCOPED_TRACE(fmt::format("{} on {}: layers {} experts {} batch {}", to_string(d), cluster,
                             sizes.layers, sizes.experts, sizes.batch));

    const MegatronPlanReading reading = c.read();
    ASSERT_EQ(kMegatronEmitter.why_not(c.input()), reading.faults);
    if (!reading.faults.empty()) {
      ++refused;
      for (const std::string& fault : reading.faults) EXPECT_GT(fault.size(), 20u) << fault;
      continue;
    }
    ++emitted;
    const MegatronPlan& m = reading.plan;
    one_by_one += !m.torchrun;
    const MegatronCommand command = launched(c);
    ASSERT_EQ(command.world_size, d.devices());
    const int capability = std::string_view(cluster).starts_with("b200") ? 10 : 9;
    const MegatronVerdict verdict =
        check_megatron(command.args, *command.world_size, command.env, {capability});
    ASSERT_TRUE(verdict.final_ok) << verdict.violations[0].message;
    ASSERT_TRUE(verdict.fine) << verdict.would_misbehave[0].message;
    EXPECT_THAT(verdict.required_env, IsEmpty());
    EXPECT_EQ(verdict.micro_batches, c.plan.micro_batches);
    for (std::size_t chunk = 0; chunk < c.plan.chunks.size(); ++chunk) {
      std::int64_t layers = 0;
      for (int s = c.plan.chunks[chunk].first_segment; s < c.plan.chunks[chunk].last_segment; ++s) {
        layers += c.segments[static_cast<std::size_t>(s)].is_layer;
      }
      const auto pp = static_cast<std::size_t>(d.pp);
      EXPECT_EQ(verdict.layers.at(chunk % pp).at(chunk / pp), layers);
    }
    EXPECT_EQ(mesh_groups(c.plan, &Roles::tensor), rank_groups(m, MegatronGrid::kDense, "tp"));
    EXPECT_EQ(mesh_groups(c.plan, &Roles::context), rank_groups(m, MegatronGrid::kDense, "cp"));
    EXPECT_EQ(mesh_groups(c.plan, &Roles::data), rank_groups(m, MegatronGrid::kDense, "dp"));
    if (sizes.experts > 0) {
      EXPECT_EQ(mesh_groups(c.plan, &Roles::expert), rank_groups(m, MegatronGrid::kExpert, "ep"));
      EXPECT_EQ(mesh_groups(c.plan, &Roles::expert_tensor),
                rank_groups(m, MegatronGrid::kExpert, "tp"));
    }
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure());
  }
  EXPECT_GT(emitted, 200);
  EXPECT_GT(refused, 20);
  EXPECT_GT(one_by_one, 10);
}

}  // namespace
}  // namespace meshwright
