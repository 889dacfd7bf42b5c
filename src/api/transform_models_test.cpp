// Transforms over models that ship by name: the same work and parameters, layers stay together.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "cluster/cluster.h"
#include "import/import.h"
#include "plan/lower.h"
#include "plan/transforms/transform_properties.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

Graph model(std::string_view name, std::int64_t batch = 4, std::int64_t seq = 0) {
  return import_model(name, {.global_batch = batch, .seq = seq}).graph;
}

std::string error_of(std::string_view name, const TransformRequest& request) {
  try {
    apply_transform(model(name), request);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(TransformModels, CoShard) {
  struct Case {
    std::string_view model;
    std::string match, factor;
    int parts;
  };
  const std::string swin = "swin.encoder.stage_[0-1].blocks.*.**";
  for (const Case& c : {
           Case{"swin-nnscaler-4", swin, "heads", 8},
           {"swin-nnscaler-4", swin, "ffn", 8},
           {"swin-nnscaler-4", swin, "batch", 4},
           {"swin-nnscaler-8", "swin.encoder.**", "heads", 12},
           {"gemma-2b", "**.self_attn.**", "heads", 4},
           {"gpt-tiny", "**.attn.**", "heads", 4},
           {"llama-tiny", "**.self_attn.**", "heads", 2},
           {"llama-tiny", "**.mlp.**", "ffn", 8},
           {"moe-tiny", "**", "experts", 4},
           {"moe-tiny", "**", "expert_ffn", 4},
           {"moe-tiny", "**", "batch", 2},
           {"t5-tiny", "**", "heads", 4},
           {"t5-tiny", "**.DenseReluDense.**", "ffn", 4},
           {"bert-tiny", "**", "heads", 2},
           {"vit-tiny", "**", "batch", 4},
           {"deepseek-v2-lite", "**.self_attn.**", "heads", 4},
           {"evoformer-tiny", "**", "heads", 2},
           {"evoformer-tiny", "**", "ffn", 4},
           {"evoformer-tiny", "**", "batch", 2},
           {"evoformer-tiny", "**.msa_row_attention.**", "sequences", 8},
           {"evoformer-tiny", "**.msa_column_attention.**", "residues", 4},
           {"evoformer-tiny", "**.triangle_attention_starting.*", "residues", 4},
           {"evoformer-tiny", "**.triangle_multiplication_outgoing.**", "triangle", 4},
       }) {
    SCOPED_TRACE(fmt::format("{} {} {}", c.model, c.match, c.factor));
    const Graph before = model(c.model);
    const Graph after = apply_transform(before, {"co_shard", c.match, c.factor, c.parts});
    expect_equal_work(before, after);
    EXPECT_EQ(shape_class_count(find_segments(after)), shape_class_count(find_segments(before)));
  }
}

// The first layers of nnScaler's Swin, whose attention over windows of 2,304 patches is large.
TEST(TransformModels, SwinRunsItsHeadsInTurn) {
  const Graph before = model("swin-nnscaler-4", 1);
  const std::string block = "swin.encoder.stage_0.blocks.1.";
  const Graph after =
      apply_transform(before, {"co_shard", "swin.encoder.stage_0.blocks.*.**", "heads", 4});
  expect_equal_work(before, after);
  EXPECT_EQ(type_of(before, block + "core"),
            "bf16[batch=64/64, window=2304/48, heads=16, head_dim=32]");
  std::vector<std::string> cores;
  for (const Op& op : after.ops) {
    if (op.kind != "attention" || !op.name.starts_with(block)) continue;
    cores.push_back(op.name.substr(block.size()));
    EXPECT_EQ(type_of(after, op.name), "bf16[batch=64/64, window=2304/48, heads=4, head_dim=32]");
  }
  EXPECT_THAT(cores, testing::ElementsAre("core@co0", "core@co1", "core@co2", "core@co3"));
  EXPECT_EQ(type_of(after, block + "attention.self.relative_position_bias@co1"),
            "bf16[heads=4, window=2304, keys=2304]");
  EXPECT_EQ(count_kind(after, "concat"), 0);
}

TEST(TransformModels, SliceSequence) {
  struct Case {
    std::string_view model;
    int parts;
    std::int64_t seq = 0;
  };
  for (const Case& c : {Case{"gpt-tiny", 4},
                        {"llama-tiny", 8},
                        {"moe-tiny", 4},
                        {"gpt2-xl", 16},
                        {"llama-3-8b", 8},
                        {"mistral-7b", 8, 8192},
                        {"gemma-2-9b", 4, 8192},
                        {"gpt-oss-20b", 4, 4096},
                        {"bloom-176b", 4},
                        {"falcon-7b", 4},
                        {"deepseek-v2-lite", 4, 4096},
                        {"mixtral-8x7b", 4},
                        {"t5-tiny", 4},
                        {"bart-base", 4},
                        {"t5-nnscaler-4", 4}}) {
    SCOPED_TRACE(c.model);
    const Graph before = model(c.model, 2, c.seq);
    const Graph after = apply_transform(before, {"slice_sequence", "", "", c.parts});
    expect_equal_work(before, after);
  }
}

TEST(TransformModels, SliceSequenceNeedsACausalModel) {
  for (std::string_view name : {"bert-tiny", "bert-base-pretraining"}) {
    EXPECT_THAT(error_of(name, {"slice_sequence", "", "", 2}),
                HasSubstr("the attention is not causal"))
        << name;
  }
  EXPECT_THAT(error_of("vit-tiny", {"slice_sequence", "", "", 2}),
              HasSubstr("no input has a dimension 'seq'"));
  EXPECT_THAT(error_of("evoformer-tiny", {"slice_sequence", "", "residues", 2}),
              HasSubstr("residues"));
}

// Passes and layers are the segments of a recycled model; equal ones are one class.
TEST(TransformModels, EvoformerSegments) {
  const Graph graph = model("evoformer-48", 1);
  const std::vector<Segment> segments = find_segments(graph);
  int layers = 0;
  std::set<int> classes;
  for (const Segment& s : segments) {
    if (!s.is_layer) continue;
    ++layers;
    classes.insert(s.shape_class);
    EXPECT_TRUE(s.name.starts_with("recycle")) << s.name;
  }
  EXPECT_EQ(layers, 4 * 48);
  // Those of the last pass have gradients.
  EXPECT_EQ(classes.size(), 2u);
  // Embedding and end of every pass are one segment each.
  EXPECT_EQ(segments.size(), 4u * (48 + 2));
}

// Plans of models with recycling and of transformed ones, proved.
TEST(TransformModels, PlansAreProved) {
  struct Case {
    std::string name;
    Graph graph;
  };
  const Graph evoformer = model("evoformer-tiny", 8);
  const std::vector<Case> cases = {
      {"evoformer", evoformer},
      {"transitions in turn", apply_transform(evoformer, {"co_shard", "**", "ffn", 2})},
      {"t5 in slices", apply_transform(model("t5-tiny", 8), {"slice_sequence", "", "", 2})},
  };
  const Cluster cluster = read_cluster("dgx-a100:1");
  for (const Case& c : cases) {
    const auto segments = find_segments(c.graph);
    for (int dp : {1, 2, 4}) {
      for (int tp : {1, 2}) {
        for (auto recompute : {Recompute::kNone, Recompute::kFull}) {
          for (auto zero : {StateSharding::kNone, StateSharding::kZero3}) {
            const Degrees d{.dp = dp, .tp = tp, .zero = zero, .recompute = recompute};
            SCOPED_TRACE(fmt::format("{} {}", c.name, to_string(d)));
            const Plan plan = make_plan(c.graph, segments, cluster, {}, 8, d, {});
            const Program program = lower(plan, c.graph, segments);
            const VerifyReport report = verify(program, plan, c.graph, segments);
            EXPECT_TRUE(report.proved()) << to_string(report);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshwright
