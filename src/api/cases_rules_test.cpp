// Section B of docs/cases.md: rules that people break when they plan by hand. Every error names the
// legal values.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "api/cases.h"
#include "base/error.h"
#include "plan/check.h"
#include "plan/lower.h"

namespace meshwright {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<Violation> broken(const Case& c, int devices, const Degrees& degrees) {
  const Loaded loaded = load(c);
  return check_degrees(model_facts(loaded.model.graph, loaded.segments), devices, c.batch, degrees);
}

auto violation(const char* rule, const char* message, const char* hint) {
  return testing::AllOf(Field(&Violation::rule, rule),
                        Field(&Violation::message, HasSubstr(message)),
                        Field(&Violation::hint, HasSubstr(hint)));
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<int> layers_per_chunk(const Loaded& loaded, const Plan& plan) {
  std::vector<int> layers;
  for (const Chunk& c : plan.chunks) {
    int count = 0;
    for (int i = c.first_segment; i < c.last_segment; ++i) {
      count += loaded.segments[static_cast<std::size_t>(i)].is_layer;
    }
    layers.push_back(count);
  }
  return layers;
}

constexpr const char* kOneHost = "dgx-a100:1";

TEST(CasesB, B1FiftyTwoHeadsOnEight) {
  const Case c{.model = "llama-30b", .cluster = kOneHost, .batch = 8, .seq = 2048};
  EXPECT_THAT(broken(c, 8, {.tp = 8}), Contains(violation("P3", "tp = 8 does not divide heads = 52",
                                                          "legal tp are 1, 2, 4, 13, 26, 52")));
  EXPECT_THAT(broken(c, 13, {.tp = 13}), Not(Contains(Field(&Violation::rule, "P3"))));
}

TEST(CasesB, B3TwentyEightHeadsOnEight) {
  const Case c{.model = "qwen2-7b", .cluster = kOneHost, .batch = 8, .seq = 2048};
  EXPECT_THAT(broken(c, 8, {.tp = 8}), Contains(violation("P3", "tp = 8 does not divide heads = 28",
                                                          "legal tp are 1, 2, 4, 7, 14, 28")));
  EXPECT_THAT(broken(c, 8, {.dp = 2, .tp = 4}), IsEmpty());
}

TEST(CasesB, B4TwelveHeadsOnEight) {
  const Case c{.model = "qwen2-1.5b", .cluster = kOneHost, .batch = 8, .seq = 2048};
  EXPECT_THAT(broken(c, 8, {.tp = 8}), Contains(violation("P3", "tp = 8 does not divide heads = 12",
                                                          "legal tp are 1, 2, 3, 4, 6, 12")));
  EXPECT_THAT(broken(c, 8, {.dp = 2, .tp = 4}), IsEmpty());
}

// A vision tower of 25 heads beside a language model whose heads four devices do divide: the tower
// stays whole on each of them.
TEST(CasesB, B5VisionTowerOfTwentyFiveHeads) {
  constexpr const char* kConfig = R"({
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
    "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 1024, "intermediate_size": 4096,
      "head_dim": 64, "num_attention_heads": 16, "num_hidden_layers": 8, "num_key_value_heads": 8,
      "vocab_size": 32000, "max_position_embeddings": 8192},
    "vision_config": {"model_type": "qwen3_vl", "depth": 4, "hidden_size": 3200, "num_heads": 25,
      "intermediate_size": 12800, "in_channels": 3, "num_position_embeddings": 2304,
      "out_hidden_size": 1024, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
      "deepstack_visual_indexes": []}})";
  Loaded loaded = load(Case{.model = "llama-tiny", .cluster = kOneHost, .batch = 8, .seq = 128});
  loaded.model = import_hf_config(kConfig, "config.json", {.global_batch = 8, .seq = 2048});
  loaded.segments = find_segments(loaded.model.graph);
  const Problem problem = loaded.problem();
  SegmentLowering lowering(problem.graph, problem.segments);
  const auto parameters = [&](const Segment& segment, int tp) {
    const Plan plan =
        make_plan(problem.graph, problem.segments, problem.cluster, {}, 8, {.tp = tp}, {});
    const auto index = static_cast<int>(&segment - problem.segments.data());
    double elements = 0;
    for (const ParameterShard& p : lowering.lower(index, plan.stages[0], {}, 1).parameters) {
      elements += p.elements;
    }
    return elements;
  };
  const auto layer = [](const Segment& s) { return s.is_layer; };
  const auto& segments = problem.segments;
  const Segment& vision = *std::find_if(segments.begin(), segments.end(), layer);
  const Segment& text = *std::find_if(segments.rbegin(), segments.rend(), layer);
  // Attention holds a third of the tower's block; the rest and the text layer are split.
  EXPECT_NEAR(parameters(vision, 4) / parameters(vision, 1), 1. / 3 + 2. / 3 / 4, 0.01);
  EXPECT_NEAR(parameters(text, 4) / parameters(text, 1), 1. / 4, 0.01);
  EXPECT_GT(judge_degrees(problem, {.dp = 2, .tp = 4}).step().value, 0);
}

// The heads are at fault, not the experts.
TEST(CasesB, B6SixtyFourHeadsOnThree) {
  const GptSizes sizes{.layers = 8,
                       .hidden = 4096,
                       .heads = 64,
                       .vocab = 32000,
                       .experts = 256,
                       .top_k = 6,
                       .expert_ffn = 2048};
  const auto violations =
      broken({.sizes = sizes, .cluster = kOneHost, .batch = 8, .seq = 2048}, 3, {.tp = 3});
  EXPECT_THAT(violations, Contains(violation("P3", "tp = 3 does not divide heads = 64",
                                             "legal tp are 1, 2, 4, 8, 16, 32, 64")));
  for (const Violation& v : violations) EXPECT_THAT(v.message, Not(HasSubstr("experts")));
}

TEST(CasesB, B7FiveDevices) {
  const Case c{.model = "llama-2-7b", .cluster = "a100-80:1x5", .batch = 10, .seq = 2048};
  EXPECT_THAT(broken(c, 5, {.tp = 5}), Contains(violation("P3", "tp = 5 does not divide heads = 32",
                                                          "legal tp are 1, 2, 4, 8, 16, 32")));
  // What to do with five devices: pipeline stages or replicas.
  const SearchResult result = search_layouts(load(c).problem(), {});
  ASSERT_EQ(result.status, SearchStatus::kFound);
  const Degrees& best = result.ranking[0].plan.degrees;
  EXPECT_EQ(best.tp, 1);
  EXPECT_EQ(best.devices(), 5);
}

TEST(CasesB, B8HeadsInFiveGroupsOrNone) {
  constexpr const char* kConfig =
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
          "intermediate_size": 11008, "num_hidden_layers": 4, "num_attention_heads": 32,
          "num_key_value_heads": {}, "vocab_size": 32000, "max_position_embeddings": 2048}})";
  const auto imported = [&](int groups) {
    return error_of([&] { import_hf_config(fmt::format(kConfig, groups), "config.json", {}); });
  };
  EXPECT_THAT(imported(5), HasSubstr("num_key_value_heads 5 does not divide num_attention_heads "
                                     "32 (legal: 1, 2, 4, 8, 16, 32)"));
  EXPECT_THAT(imported(0), HasSubstr("must be a whole number from 1"));
  EXPECT_EQ(imported(8), "");
  EXPECT_THAT(
      error_of([] { gpt_model({.layers = 4, .hidden = 4096, .heads = 32, .kv_heads = 5}, {}); }),
      HasSubstr("must divide --heads = 32, but is 5 (legal: 1, 2, 4, 8, 16, 32)"));
}

// The thread is about all-to-all sequence parallelism, which obeys the rule of tensor parallelism:
// more ways than key/value heads are legal when the heads are copied evenly.
TEST(CasesB, B9MoreWaysThanKeyValueHeads) {
  const Case c{.model = "qwen2.5-14b", .cluster = "dgx-h100:5", .batch = 40, .seq = 65536};
  const auto rules = [&](int tp) {
    std::vector<std::string> names;
    for (const Violation& v : broken(c, 40, {.tp = tp})) names.push_back(v.rule);
    return names;
  };
  EXPECT_THAT(rules(8), IsEmpty());
  EXPECT_THAT(rules(40), Not(Contains("P3")));
  EXPECT_THAT(rules(40), Not(Contains("P4")));
  EXPECT_THAT(rules(20), Contains("P4"));
  EXPECT_THAT(rules(16), Contains("P3"));
}

TEST(CasesB, B11NoLayerIsDropped) {
  const Loaded loaded = load(Case{.sizes = {.layers = 30, .hidden = 1024, .heads = 16},
                                  .cluster = "a100-80:1x4",
                                  .batch = 16,
                                  .seq = 1024});
  const std::vector<int> layers =
      layers_per_chunk(loaded, judge_degrees(loaded.problem(), {.pp = 4}).plan);
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), 30);
}

TEST(CasesB, B13APlanThatLeavesLayersOutIsRefused) {
  const Loaded loaded = load(Case{.sizes = {.layers = 20, .hidden = 1024, .heads = 16},
                                  .cluster = "a100-80:1x1",
                                  .batch = 16,
                                  .seq = 1024});
  Plan plan = judge_degrees(loaded.problem(), {}).plan;
  EXPECT_THAT(layers_per_chunk(loaded, plan), ElementsAre(20));
  plan.chunks[0].last_segment = 2;
  EXPECT_THAT(check_plan(plan, loaded.model.graph, loaded.segments, loaded.cluster),
              Contains(Field(&Violation::rule, "P28")));
}

TEST(CasesB, B15LayerCountsThatDepthDoesNotDivide) {
  const auto cut = [](int layers, int pp) {
    const Loaded loaded = load(Case{
        .sizes = {.layers = layers, .hidden = 4096, .heads = 32, .vocab = 32000, .gated = true},
        .cluster = fmt::format("h100:1x{}", pp),
        .batch = 128,
        .seq = 2048});
    return layers_per_chunk(
        loaded, judge_degrees(loaded.problem(), {.pp = pp, .recompute = Recompute::kFull}).plan);
  };
  // The ends carry embedding and output layer.
  EXPECT_THAT(cut(6, 4), ElementsAre(1, 2, 2, 1));
  for (int layers : {43, 61, 78}) {
    for (int pp : {2, 3, 4, 5, 8, 16}) {
      const std::vector<int> split = cut(layers, pp);
      EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), layers) << pp;
      EXPECT_LE(*std::max_element(split.begin(), split.end()), (layers + pp - 1) / pp + 1) << pp;
      EXPECT_GE(*std::min_element(split.begin(), split.end()), layers / pp - 2) << pp;
    }
  }
}

TEST(CasesB, B17InterleavingNeedsMicroBatchesInMultiplesOfDepth) {
  const Case c{.sizes = {.layers = 16, .hidden = 1024, .heads = 16},
               .cluster = "a100-80:1x4",
               .batch = 6,
               .seq = 1024};
  EXPECT_THAT(
      broken(c, 4, {.pp = 4, .vpp = 2}),
      Contains(violation("P15", "need micro-batches (6) in multiples of pp = 4", "use vpp = 1")));
  // Fewer micro-batches than stages neither hang nor pass for good: every stage waits.
  Case few = c;
  few.batch = 2;
  const CaseRun r = run(few, {.pp = 4});
  EXPECT_GT(r.step(), 0);
  for (const StageTime& s : r.judged.timeline.stages) EXPECT_GT(s.bubble.value, 0.25 * r.step());
}

TEST(CasesB, B19TheBatchDividesByReplicasTimesMicroBatch) {
  const Case c{.model = "llama-2-7b", .cluster = kOneHost, .batch = 24, .seq = 2048};
  EXPECT_THAT(broken(c, 8, {.dp = 8, .micro_batch = 2}),
              Contains(violation("P12", "global batch 24 is not a multiple of dp * micro-batch",
                                 "legal micro-batches are 1, 3")));
}

}  // namespace
}  // namespace meshwright
