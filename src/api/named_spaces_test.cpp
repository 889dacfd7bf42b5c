// Every shipped space with several models on up to 16 devices: what the search ranks is lowered and
// proved, and obeys the space. Models to which a space cannot apply are refused with a reason.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "plan/check.h"
#include "plan/lower.h"
#include "plan/micro_batch_tables.h"
#include "search/layout_search.h"
#include "space/limits.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

struct Refusal {
  const char* model;
  const char* reason;  ///< Part of the message; empty = no layout is legal, or rules forbid all.
};

struct Case {
  const char* space;
  std::vector<int> devices;
  std::vector<const char*> models;   ///< Proved on each of `devices`.
  std::vector<const char*> on_four;  ///< Larger ones, proved on four devices (or the next number).
  std::vector<Refusal> refused;
};

const std::vector<const char*> kTiny = {"llama-tiny", "gpt-tiny", "moe-tiny",  "t5-tiny",
                                        "bert-tiny",  "vit-tiny", "swin-tiny", "evoformer-tiny"};
const std::vector<const char*> kCausal = {"llama-tiny", "gpt-tiny", "moe-tiny", "t5-tiny"};
const std::vector<const char*> kText = {"llama-tiny", "gpt-tiny", "moe-tiny", "t5-tiny",
                                        "bert-tiny"};
const std::vector<int> kAll = {1, 2, 4, 8, 16};
const std::vector<int> kTwo = {2, 4, 8, 16};
const std::vector<int> kFour = {4, 8, 16};

constexpr const char* kRecycles = "needs a model that goes over the stages several times";
constexpr const char* kNoSequence = "no input has a dimension 'seq'";
constexpr const char* kNoSeqFactor = "no matched operator has a factor \"seq\"";
constexpr const char* kNoExperts = "matches no operator of the model";
constexpr const char* kVocabulary = "needs segments with a vocabulary";
constexpr const char* kNoFfn = "no selected operator has a factor \"ffn\"";
// Reasons that no message of an Error gives: no layout is legal.
constexpr const char* kIllegal = "";

const std::vector<Case> kCases = {
    {"data-parallel", kAll, kTiny, {"llama-3-8b"}, {}},
    {"zero1", kAll, kTiny, {"llama-3-8b"}, {}},
    {"zero2", kAll, kTiny, {"mixtral-8x7b"}, {}},
    {"fsdp", kAll, kTiny, {"llama-3-8b"}, {}},
    {"hybrid-sharding", kFour, kTiny, {"llama-3-8b"}, {}},
    {"megatron-tp", kTwo, kTiny, {"llama-3-8b"}, {}},
    // Norms of images and residues have no sequence to be split along.
    {"megatron-tp-sp",
     kTwo,
     kText,
     {"llama-3-8b"},
     {{"vit-tiny", kNoSeqFactor}, {"swin-tiny", kNoSeqFactor}, {"evoformer-tiny", kNoSeqFactor}}},
    {"gpipe", kTwo, kTiny, {"llama-3-8b"}, {}},
    {"1f1b", kTwo, kTiny, {"mixtral-8x7b"}, {}},
    // Two layers make no four chunks.
    {"interleaved",
     kTwo,
     {"llama-tiny", "gpt-tiny", "moe-tiny", "t5-tiny", "swin-tiny", "evoformer-tiny"},
     {"llama-3-8b"},
     {{"bert-tiny", kIllegal}, {"vit-tiny", kIllegal}}},
    // The context role splits sequences of tokens only. Of the 49 positions of a window and the odd
    // number of patches no ring can be made; rows of residues that attend to columns have none.
    {"ring-context",
     kTwo,
     kText,
     {"llama-3-8b"},
     {{"vit-tiny", kIllegal}, {"swin-tiny", kIllegal}, {"evoformer-tiny", kIllegal}}},
    {"all-to-all-context",
     kTwo,
     kText,
     {"llama-3-8b"},
     {{"vit-tiny", kIllegal}, {"swin-tiny", kIllegal}, {"evoformer-tiny", kIllegal}}},
    {"expert-parallel",
     kTwo,
     {"moe-tiny"},
     {"mixtral-8x7b", "deepseek-v2-lite"},
     {{"llama-tiny", kNoExperts},
      {"gpt-tiny", kNoExperts},
      {"t5-tiny", kNoExperts},
      {"bert-tiny", kNoExperts},
      {"vit-tiny", kNoExperts},
      {"swin-tiny", kNoExperts},
      {"evoformer-tiny", kNoExperts}}},
    // Two (key/value) heads are too few for a grid of four; see ring-context for images.
    {"tensor-2d",
     kFour,
     {"gpt-tiny", "t5-tiny"},
     {"llama-3-8b", "gpt2"},
     {{"llama-tiny", kIllegal},
      {"moe-tiny", kIllegal},
      {"bert-tiny", kIllegal},
      {"vit-tiny", kIllegal},
      {"swin-tiny", kIllegal},
      {"evoformer-tiny", kIllegal}}},
    {"tensor-2.5d",
     {8, 16},
     {"gpt-tiny", "t5-tiny"},
     {"llama-3-8b", "gpt2"},
     {{"llama-tiny", kIllegal},
      {"moe-tiny", kIllegal},
      {"bert-tiny", kIllegal},
      {"vit-tiny", kIllegal},
      {"swin-tiny", kIllegal},
      {"evoformer-tiny", kIllegal}}},
    {"zb-h1", kTwo, kTiny, {"llama-3-8b"}, {}},
    {"zb-v",
     kTwo,
     {"llama-tiny", "gpt-tiny", "moe-tiny", "t5-tiny", "swin-tiny", "evoformer-tiny"},
     {"llama-3-8b"},
     {{"bert-tiny", kIllegal}, {"vit-tiny", kIllegal}}},
    {"chimera", kTwo, kTiny, {"llama-3-8b"}, {}},
    {"dualpipe", kTwo, kTiny, {"llama-3-8b"}, {}},
    {"terapipe",
     kTwo,
     kCausal,
     {"gpt2"},
     {{"bert-tiny", "the attention is not causal"},
      {"vit-tiny", kNoSequence},
      {"swin-tiny", kNoSequence},
      {"evoformer-tiny", kNoSequence}}},
    // Four parts do not divide two or three heads; experts have widths of their own.
    {"co-shard",
     kAll,
     {"gpt-tiny", "t5-tiny"},
     {"swin-nnscaler-4", "llama-3-8b", "bert-base"},
     {{"llama-tiny", "4 parts do not divide factor 'kv_heads' of 2"},
      {"moe-tiny", "4 parts do not divide factor 'kv_heads' of 2"},
      {"bert-tiny", "4 parts do not divide factor 'heads' of 2"},
      {"vit-tiny", "4 parts do not divide factor 'heads' of 2"},
      {"swin-tiny", "4 parts do not divide factor 'heads' of 3"},
      {"mixtral-8x7b", kNoFfn}}},
    {"interlaced",
     kTwo,
     kText,
     {"t5-nnscaler-4", "mbart-nnscaler-4"},
     {{"vit-tiny", kVocabulary}, {"swin-tiny", kVocabulary}, {"evoformer-tiny", kVocabulary}}},
    {"3f1b",
     kTwo,
     {"evoformer-tiny"},
     {"evoformer-48", "evoformer-48-extra"},
     {{"llama-tiny", kRecycles},
      {"gpt-tiny", kRecycles},
      {"moe-tiny", kRecycles},
      {"t5-tiny", kRecycles},
      {"bert-tiny", kRecycles},
      {"vit-tiny", kRecycles},
      {"swin-tiny", kRecycles}}},
};

// Two hosts from four devices on.
std::string cluster_of(int devices) {
  return devices < 4 ? "a100-80:1x" + std::to_string(devices)
                     : "a100-80:2x" + std::to_string(devices / 2);
}

// `micro_batch` 0 = any: large models are searched with one size only, to be quick.
Loaded load_in(const std::string& space, const char* model, int devices,
               std::int64_t micro_batch = 0) {
  Request r;
  r.model = model;
  r.import.global_batch = 16;
  r.cluster = cluster_of(devices);
  r.space = space;
  if (micro_batch > 0) {
    r.restrictions.micro_batch.min = r.restrictions.micro_batch.max = micro_batch;
    if (space == "3f1b" || space == "interlaced" || space == "terapipe") {
      // Every layout of these is simulated.
      r.restrictions.recompute = {Recompute::kFull};
      r.restrictions.state = {StateSharding::kZero1};
    }
  }
  return load(r);
}

// What a search returns; empty when nothing is legal. Throws Error as `plan --space` does.
std::vector<Judged> ranked(const Problem& problem) {
  SearchControl control;
  control.top = 3;
  return search_layouts(problem, control).ranking;
}

// Whether the plan is one that the file speaks of: read off the plan, not asked of the search.
void expect_obeyed(const Plan& plan, const CompiledSpace& compiled, const Problem& problem) {
  const PlanSpace& space = compiled.space;
  const Degrees& d = plan.degrees;
  const std::map<std::string, std::int64_t> numbers = {
      {"pp", d.pp}, {"vpp", d.vpp}, {"dp", d.dp},   {"tp", d.tp},
      {"cp", d.cp}, {"ep", d.ep},   {"etp", d.etp}, {"micro_batch", d.micro_batch}};
  const auto named = [](const SpaceDegree& degree, std::string_view name) {
    return std::find(degree.names.begin(), degree.names.end(), name) != degree.names.end();
  };
  for (const SpaceDegree& degree : space.degrees) {
    if (const auto it = numbers.find(degree.key); it != numbers.end()) {
      EXPECT_TRUE(degree.numbers.contains(it->second)) << degree.key << " = " << it->second;
    } else if (degree.key == "sp") {
      EXPECT_EQ(d.sp, degree.flag && d.tp > 1);
    } else if (degree.key == "hybrid") {
      EXPECT_EQ(d.zero_group != 0, degree.flag);
    } else if (degree.key == "zero") {
      EXPECT_TRUE(named(degree, state_sharding_name(d.zero)));
      for (const Stage& s : plan.stages) EXPECT_EQ(s.state, d.zero);
    } else if (degree.key == "recompute") {
      EXPECT_TRUE(named(degree, recompute_name(d.recompute)));
      for (const Stage& s : plan.stages) EXPECT_EQ(s.recompute, d.recompute);
    } else if (degree.key == "schedule") {
      EXPECT_TRUE(named(degree, plan.schedule));
    } else {
      ADD_FAILURE() << degree.key;
    }
  }
  // Splits by rule: of every matched operator each named factor over exactly the named axes.
  if (space.rules.empty()) return;
  const Graph& graph = problem.graph;
  const Stage& stage = plan.stages[0];
  MicroBatchTables tables(graph);
  const PlanBuilder builder(graph, problem.segments);
  const std::int64_t samples = d.micro_batch * d.dp;
  for (const SpaceRule& r : space.rules) {
    for (int op : builder.find(r.match)) {
      const Op& o = graph.ops[static_cast<std::size_t>(op)];
      const OpDef& def = find_op(o.kind);
      const Rule& rule = tables.rule(op, def, samples);
      std::vector<TensorType> types;
      for (ValueId id : o.inputs) types.push_back(tables.type(id, samples));
      Strategy strategy = strategy_for(rule, types, stage.roles, stage.mesh, def.ring);
      const int own = plan.overrides == nullptr || plan.overrides->rule_of_op.empty()
                          ? -1
                          : plan.overrides->rule_of_op[static_cast<std::size_t>(op)];
      if (own >= 0) {
        strategy = overridden(strategy, rule, plan.overrides->rules[static_cast<std::size_t>(own)],
                              stage.roles, stage.mesh);
      }
      const auto split_of = [&](const std::string& factor) {
        AxisList axes;
        for (std::size_t f = 0; f < rule.factors.size(); ++f) {
          if (rule.factors[f].id == factor || rule.factors[f].label == factor)
            axes = strategy.factors[f];
        }
        return axes;
      };
      for (const OpOverride::Split& split : r.split) {
        std::uint32_t wanted = 0;
        for (const std::string& axis : split.axes)
          wanted |= axes_named(axis, stage.roles, stage.mesh).mask();
        EXPECT_EQ(split_of(split.factor).mask(), wanted) << o.name << " " << split.factor;
      }
      for (const std::string& factor : r.must_split) {
        if (factor_named(rule, factor) < 0) continue;
        EXPECT_GT(stage.mesh.size(split_of(factor)), 1) << o.name << " " << factor;
      }
    }
  }
}

// Searches, lowers and proves; the number of plans.
int prove_all(const Case& c, const char* model, int devices, std::int64_t micro_batch) {
  SCOPED_TRACE(std::string(c.space) + " " + model + " on " + std::to_string(devices));
  try {
    const Loaded loaded = load_in(c.space, model, devices, micro_batch);
    const Problem problem = loaded.problem();
    const std::vector<Judged> plans = ranked(problem);
    int proved = 0;
    for (const Judged& judged : plans) {
      SCOPED_TRACE(to_string(judged.plan.degrees));
      const auto violations =
          check_plan(judged.plan, problem.graph, problem.segments, problem.cluster);
      EXPECT_TRUE(violations.empty()) << violations[0].rule << " " << violations[0].message;
      const Program program = lower(judged.plan, problem.graph, problem.segments);
      const VerifyReport report = verify(program, judged.plan, problem.graph, problem.segments);
      EXPECT_TRUE(report.proved()) << to_string(report);
      expect_obeyed(judged.plan, *loaded.space, problem);
      proved += report.proved() && violations.empty();
    }
    EXPECT_GT(proved, 0) << "no layout";
    return proved;
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
    return 0;
  }
}

TEST(NamedSpaces, AllAreTested) {
  std::set<std::string> tested, shipped;
  for (const Case& c : kCases) tested.insert(c.space);
  for (const NamedSpace& space : named_spaces()) shipped.insert(space.name);
  EXPECT_EQ(tested, shipped);
}

// nnScaler's Swin (Lin et al. 2024): the same layout needs less memory when the heads and
// the MLP of a block run in parts.
TEST(NamedSpaces, CoShardSavesMemoryOfSwin) {
  const auto memory = [](const std::string& space, std::vector<Recompute> recompute) {
    Request r;
    r.model = "swin-nnscaler-4";
    r.import.global_batch = 256;
    r.import.attention = "unfused";
    r.import.dtype = r.training.dtype = DType::kF16;
    r.cluster = "v100-32:1x4";
    r.space = space;
    r.restrictions.recompute = std::move(recompute);
    const Loaded loaded = load(r);
    const Degrees degrees{.pp = 2,
                          .dp = 2,
                          .micro_batch = 1,
                          .zero = StateSharding::kZero3,
                          .recompute = loaded.request.restrictions.recompute[0]};
    const Judged judged = judge_degrees(loaded.problem(), degrees);
    double most = 0;
    for (const MemoryBreakdown& m : judged.timeline.memory) most = std::max(most, m.total().value);
    const Program program = lower(judged.plan, loaded.model.graph, loaded.segments);
    EXPECT_TRUE(verify(program, judged.plan, loaded.model.graph, loaded.segments).proved());
    return most;
  };
  const double parts = memory("co-shard", {Recompute::kParts});
  EXPECT_LT(parts, 0.95 * memory("", {Recompute::kFull}));
  EXPECT_LT(parts, 0.7 * memory("", {Recompute::kNone}));
}

// A file of its own; its ranking.
std::vector<Judged> ranked_with(const std::string& text, const char* model, int devices) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "named_spaces_test.yaml";
  write_file(path.string(), text, /*overwrite=*/true);
  const Loaded loaded = load_in(path.string(), model, devices);
  const Problem problem = loaded.problem();
  std::vector<Judged> plans = ranked(problem);
  for (const Judged& judged : plans) {
    const Program program = lower(judged.plan, problem.graph, problem.segments);
    const VerifyReport report = verify(program, judged.plan, problem.graph, problem.segments);
    EXPECT_TRUE(report.proved()) << to_string(report);
  }
  return plans;
}

TEST(NamedSpaces, OrdersHoldUnderSchedulesOfRounds) {
  const std::string text =
      "space: x\n"
      "degrees: {pp: 2, micro_batch: 2, schedule: terapipe}\n"
      "transforms: [{op_trans: slice_sequence, match: \"**\", parts: 2}]\n";
  const std::vector<Judged> without = ranked_with(text, "llama-tiny", 2);
  const std::vector<Judged> with = ranked_with(text +
                                                   "order:\n"
                                                   "  - before: {phase: backward, stage: first}\n"
                                                   "    after: {phase: forward, micro_batch: i+1, "
                                                   "stage: first}\n",
                                               "llama-tiny", 2);
  ASSERT_FALSE(without.empty());
  ASSERT_FALSE(with.empty());
  // One micro-batch at a time on the first stage.
  EXPECT_EQ(with[0].plan.order.size(), 4u * 7);
  EXPECT_GT(with[0].step().value, 1.2 * without[0].step().value);
}

TEST(NamedSpaces, PlacementHoldsUnderSchedulesOfRounds) {
  const auto placed = [](const std::string& kind) {
    return ranked_with(
        "space: x\n"
        "degrees: {schedule: interlaced}\n"
        "rules: [{match: {kind: " +
            kind + "}, assign: {devices: all}}]\n",
        "t5-tiny", 4);
  };
  EXPECT_FALSE(placed("embedding").empty());
  EXPECT_TRUE(placed("attention").empty());
  try {
    ranked_with(
        "space: x\ndegrees: {schedule: interlaced}\n"
        "rules: [{match: {kind: rms_norm}, require: {replicate: true}}]\n",
        "t5-tiny", 4);
    ADD_FAILURE() << "not refused";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr(".yaml:3:9: rule rule-1: how operators are split"));
  }
}

TEST(NamedSpaces, DevicesAllMeansNoPipeline) {
  const auto plans = ranked_with(
      "space: x\nrules: [{match: {kind: embedding}, assign: {devices: all}}]\n", "llama-tiny", 4);
  ASSERT_FALSE(plans.empty());
  for (const Judged& judged : plans) EXPECT_EQ(judged.plan.degrees.pp, 1);
}

class EachSpace : public testing::TestWithParam<Case> {};

TEST_P(EachSpace, IsSearchedAndProved) {
  const Case& c = GetParam();
  int models = 0;
  const auto run = [&](const char* model, const std::vector<int>& on, std::int64_t micro_batch) {
    std::string line;
    for (int devices : on) {
      const int proved = prove_all(c, model, devices, micro_batch);
      if (proved > 0) line += " " + std::to_string(devices);
    }
    models += !line.empty();
    std::printf("proved  %-18s  %-16s  on%s\n", c.space, model, line.c_str());
  };
  for (const char* model : c.models) run(model, c.devices, 0);
  const auto four = std::find_if(c.devices.begin(), c.devices.end(), [](int n) { return n >= 4; });
  for (const char* model : c.on_four) run(model, {*four}, 2);
  EXPECT_GE(models, 3);
}

TEST_P(EachSpace, RefusesWhatItCannotApplyTo) {
  const Case& c = GetParam();
  for (const Refusal& refusal : c.refused) {
    SCOPED_TRACE(refusal.model);
    const std::string reason = refusal.reason;
    try {
      const Loaded loaded = load_in(c.space, refusal.model, c.devices.back());
      const Problem problem = loaded.problem();
      EXPECT_TRUE(ranked(problem).empty());
      EXPECT_EQ(reason, kIllegal) << "nothing legal instead of the reason";
    } catch (const Error& e) {
      EXPECT_NE(reason, kIllegal) << e.what();
      EXPECT_NE(std::string(e.what()).find(reason), std::string::npos) << e.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(NamedSpaces, EachSpace, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.space;
  std::replace_if(name.begin(), name.end(), [](char ch) { return ch == '-' || ch == '.'; }, '_');
  return name;
});

}  // namespace
}  // namespace meshwright
