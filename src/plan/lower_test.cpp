#include "plan/lower.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "models/test_models.h"
#include "ops/builder.h"
#include "plan/check.h"

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// "all_gather@attn.q_proj[tp] 1024": communication of a block, in order.
std::vector<std::string> communication(const std::vector<Instr>& instrs, const Graph& graph,
                                       const Mesh& mesh) {
  std::vector<std::string> lines;
  for (const Instr& i : instrs) {
    if (i.kind != InstrKind::kCollective) continue;
    std::string axes;
    for (int a : i.group)
      axes += (axes.empty() ? "" : "+") + mesh.axes[static_cast<std::size_t>(a)].name;
    std::string op = i.op.valid() ? graph.op(i.op).name : "";
    if (op.starts_with("layers.")) op = op.substr(op.find('.', 7) + 1);
    lines.push_back(
        fmt::format("{}@{}[{}] {:.0f}", collective_name(i.collective), op, axes, i.bytes.value));
  }
  return lines;
}

struct Lowered {
  Graph graph;
  Stage stage;
  SegmentProgram layer;
};

Lowered lower_layer(const TestModelSizes& sizes, const Degrees& degrees) {
  Lowered result{test_model(sizes), {}, {}};
  const auto segments = find_segments(result.graph);
  const ModelFacts facts = model_facts(result.graph, segments);
  EXPECT_THAT(check_degrees(facts, degrees.devices(), sizes.batch, degrees), IsEmpty());
  result.stage = make_stage(degrees, facts.all_kv_heads, 0);
  SegmentLowering lowering(result.graph, segments);
  result.layer = lowering.lower(2, result.stage, {}, degrees.micro_batch * degrees.dp);
  return result;
}

TEST(Segments, EqualLayersShareAClass) {
  const Graph graph = test_model({});
  const auto segments = find_segments(graph);
  ASSERT_EQ(segments.size(), 6u);  // embedding, 4 layers, head
  EXPECT_EQ(segments[1].name, "layers.0");
  EXPECT_EQ(segments[1].shape_class, segments[4].shape_class);
  EXPECT_NE(segments[0].shape_class, segments[1].shape_class);
  EXPECT_FALSE(segments[5].is_layer);
}

// Megatron tensor parallelism (Shoeybi et al. 2019): two all_reduces forward, two backward.
TEST(Lower, TensorParallelReducesTwicePerDirection) {
  const auto r = lower_layer({}, {.tp = 4, .micro_batch = 2});
  const double bytes = 2 * 128 * 64 * 2;  // mbs * seq * hidden * bf16
  const std::string b = fmt::format("{:.0f}", bytes);
  EXPECT_THAT(communication(r.layer.forward, r.graph, r.stage.mesh),
              ElementsAre("all_reduce@attn.o_proj[tp] " + b, "all_reduce@mlp.down[tp] " + b));
  EXPECT_THAT(communication(r.layer.backward, r.graph, r.stage.mesh),
              ElementsAre("all_reduce@norm2[tp] " + b, "all_reduce@norm1[tp] " + b));
}

// With sequence parallelism (Korthikanti et al. 2022): all_gather and reduce_scatter in their
// place, and the gathered inputs of the two blocks are gathered again in the backward pass.
TEST(Lower, SequenceParallelGathersAndScatters) {
  const auto r = lower_layer({}, {.tp = 4, .sp = true, .micro_batch = 2});
  const std::string b = fmt::format("{}", 2 * 128 * 64 * 2);
  EXPECT_THAT(communication(r.layer.forward, r.graph, r.stage.mesh),
              ElementsAre("all_gather@attn.q_proj[tp] " + b, "reduce_scatter@attn.o_proj[tp] " + b,
                          "all_gather@mlp.gate[tp] " + b, "reduce_scatter@mlp.down[tp] " + b));
  EXPECT_THAT(communication(r.layer.backward, r.graph, r.stage.mesh),
              ElementsAre("all_gather@mlp.down[tp] " + b, "all_gather@mlp.up[tp] " + b,
                          "reduce_scatter@norm2[tp] " + b, "all_gather@attn.o_proj[tp] " + b,
                          "all_gather@attn.v_proj[tp] " + b, "reduce_scatter@norm1[tp] " + b));
}

// What the backward pass gathers again is marked, and its bytes are known: engines may keep it.
TEST(Lower, GathersOfTheBackwardPassAreMarked) {
  const auto r = lower_layer({}, {.tp = 4, .sp = true, .micro_batch = 2});
  int marked = 0;
  for (const Instr& i : r.layer.backward) {
    marked += i.regather;
    EXPECT_TRUE(!i.regather || i.collective == CollectiveKind::kAllGather);
  }
  EXPECT_EQ(marked, 2);
  EXPECT_EQ(r.layer.gathered.value, 2 * (2 * 128 * 64 * 2) * 3 / 4.0);
  EXPECT_EQ(lower_layer({}, {.tp = 4, .micro_batch = 2}).layer.gathered.value, 0);
}

// Every micro-batch adds its gradients to the accumulated ones: the new one is read in the weights'
// type, the sum read and written.
TEST(Lower, BackwardPassesAccumulateGradients) {
  const auto r = lower_layer({}, {.tp = 4, .micro_batch = 2});
  double elements = 0;
  for (const ParameterShard& p : r.layer.parameters) elements += p.elements;
  const auto accumulation = [](const SegmentProgram& p) {
    return *std::find_if(p.backward.begin(), p.backward.end(),
                         [](const Instr& i) { return i.kind == InstrKind::kAccumulate; });
  };
  const Instr last = accumulation(r.layer);
  EXPECT_EQ(last.traffic.value, elements * (2 + 4 + 4));
  EXPECT_EQ(last.kernels, static_cast<int>(r.layer.parameters.size()));
  // Sharded: copied into the buffer of the reduce_scatter, added to a quarter.
  const auto sharded = lower_layer({}, {.dp = 4, .micro_batch = 2, .zero = StateSharding::kZero2});
  elements = 0;
  for (const ParameterShard& p : sharded.layer.parameters) elements += p.elements;
  EXPECT_EQ(accumulation(sharded.layer).traffic.value, elements * (2 + 4) + elements / 4 * (4 + 4));
}

// ZeRO-3 (Rajbhandari et al. 2020, section 7.2): two gathers and one reduce_scatter per parameter
// and micro-batch, whole segments at a time; bytes as the parameters have.
TEST(Lower, FullyShardedParametersAreGatheredTwiceAndScatteredOnce) {
  const auto r = lower_layer({}, {.dp = 4, .micro_batch = 2, .zero = StateSharding::kZero3});
  double elements = 0;
  for (const ParameterShard& p : r.layer.parameters) elements += p.elements;
  EXPECT_EQ(elements, 64 * (64 + 32 + 32 + 64) + 3 * 64 * 256 + 2 * 64);
  const std::string gather = fmt::format("all_gather@[dp] {:.0f}", 2 * elements);
  EXPECT_THAT(communication(r.layer.forward, r.graph, r.stage.mesh), ElementsAre(gather));
  EXPECT_THAT(communication(r.layer.backward, r.graph, r.stage.mesh),
              ElementsAre(gather, fmt::format("reduce_scatter@[dp] {:.0f}", 4 * elements)));
  // Each of them on every parameter exactly once.
  std::map<std::int32_t, int> gathered, scattered;
  for (const auto* list : {&r.layer.forward, &r.layer.backward}) {
    for (const Instr& i : *list) {
      if (i.kind != InstrKind::kCollective) continue;
      auto& seen = i.collective == CollectiveKind::kAllGather ? gathered : scattered;
      for (std::int32_t b : r.layer.out(i))
        ++seen[r.layer.buffers[static_cast<std::size_t>(b)].value.value];
    }
  }
  for (const ParameterShard& p : r.layer.parameters) {
    EXPECT_EQ(gathered[p.value.value], 2) << r.graph.value(p.value).name;
    EXPECT_EQ(scattered[p.value.value], 1) << r.graph.value(p.value).name;
  }
}

TEST(Lower, LossKeepsItsLogitsApart) {
  const Graph graph = test_model({});
  const auto segments = find_segments(graph);
  SegmentLowering lowering(graph, segments);
  const Stage stage = make_stage({.micro_batch = 2}, {}, 0);
  const SegmentProgram head = lowering.lower(static_cast<int>(segments.size()) - 1, stage, {}, 2);
  EXPECT_EQ(head.loss.value, 2 * 128 * 1000 * 4);
  EXPECT_GE(head.saved, head.loss);
}

TEST(Lower, DataParallelLayersDoNotCommunicate) {
  const auto r = lower_layer({}, {.dp = 8, .micro_batch = 2});
  EXPECT_THAT(communication(r.layer.forward, r.graph, r.stage.mesh), IsEmpty());
  EXPECT_THAT(communication(r.layer.backward, r.graph, r.stage.mesh), IsEmpty());
  for (const ParameterShard& p : r.layer.parameters) {
    EXPECT_EQ(p.reduce, r.stage.roles.data.mask()) << r.graph.value(p.value).name;
  }
}

// Key and value heads fewer than tensor ranks: projections are replicated over part of the ranks.
TEST(Lower, FewKeyValueHeadsAreSplitOnlyAsFarAsTheyGo) {
  const auto r = lower_layer({.heads = 8, .kv_heads = 2}, {.tp = 8, .micro_batch = 1});
  for (const ParameterShard& p : r.layer.parameters) {
    const std::string& name = r.graph.value(p.value).name;
    if (name.ends_with("q_proj.weight")) {
      EXPECT_EQ(p.elements, 64 * 64 / 8.0);
    }
    if (name.ends_with("k_proj.weight")) {
      EXPECT_EQ(p.elements, 64 * 16 / 2.0);
    }
  }
}

// Experts (GShard, Lepikhin et al. 2021): all_to_all before and after the experts, both directions.
TEST(Lower, ExpertParallelExchangesTokens) {
  const auto r = lower_layer({.experts = 8}, {.dp = 4, .ep = 4, .micro_batch = 2});
  const auto only_exchanges = [&](const std::vector<Instr>& instrs) {
    int count = 0;
    for (const Instr& i : instrs) {
      if (i.kind == InstrKind::kCollective) {
        EXPECT_EQ(i.collective, CollectiveKind::kAllToAll);
        EXPECT_EQ(i.purpose, Purpose::kExpert);
        // tokens * top_k * hidden * bf16
        EXPECT_EQ(i.bytes.value, 2 * 128 * 2 * 64 * 2);
        ++count;
      }
    }
    return count;
  };
  EXPECT_EQ(only_exchanges(r.layer.forward), 2);
  EXPECT_EQ(only_exchanges(r.layer.backward), 2);
}

TEST(Lower, RingAttentionPassesKeysAndValues) {
  const auto r = lower_layer({}, {.cp = 4, .micro_batch = 2});
  // 3 rounds of one quarter of K and V each.
  const double kv = 2.0 * (2 * 32 * 4 * 8) * 2;
  EXPECT_THAT(communication(r.layer.forward, r.graph, r.stage.mesh),
              ElementsAre(fmt::format("ring@attn.core[cp] {:.0f}", 3 * kv)));
  EXPECT_THAT(communication(r.layer.backward, r.graph, r.stage.mesh),
              ElementsAre(fmt::format("ring@attn.core[cp] {:.0f}", 3 * kv),
                          fmt::format("ring@attn.core[cp] {:.0f}", 3 * kv)));
}

// Sharded compute adds up to the whole compute, whatever the layout.
TEST(Lower, FlopsOfAllDevicesEqualTheModel) {
  const auto flops = [](const SegmentProgram& p) {
    double total = 0;
    for (const Instr& i : p.forward) total += i.flops.value;
    for (const Instr& i : p.backward) total += i.flops.value;
    return total;
  };
  const double whole = flops(lower_layer({}, {.micro_batch = 16}).layer);
  EXPECT_NEAR(flops(lower_layer({}, {.tp = 4, .sp = true, .micro_batch = 16}).layer) * 4, whole,
              whole * 1e-9);
  EXPECT_NEAR(flops(lower_layer({}, {.cp = 4, .micro_batch = 16}).layer) * 4, whole, whole * 1e-9);
  EXPECT_NEAR(flops(lower_layer({}, {.dp = 2, .tp = 4, .sp = true, .micro_batch = 8}).layer) * 8,
              whole, whole * 1e-9);
}

// A relative position bias is the same for every sample: its gradient is summed with the
// parameters', once.
TEST(Lower, GradientsOfWhatOnlyParametersFeedWaitForTheStep) {
  GraphBuilder b("bias");
  const ValueId table = b.parameter("layers.0.table", {{"buckets", 32, 1}, {"heads", 8, 1}});
  const ValueId bias = b.op("relative_bias", "layers.0.bias", {table},
                            {{"query_length", std::int64_t{16}}, {"key_length", std::int64_t{16}}});
  const TensorType qkv{DType::kBf16, {{"batch", 8}, {"seq", 16}, {"heads", 8}, {"head_dim", 4}}};
  const ValueId q = b.input("q", qkv);
  b.op("attention", "layers.0.core", {q, q, q, bias});
  const Graph graph = b.finish();
  const auto segments = find_segments(graph);
  const Stage stage = make_stage({.dp = 4, .micro_batch = 2}, {}, 0);
  SegmentLowering lowering(graph, segments);
  const SegmentProgram program = lowering.lower(0, stage, {}, 8);
  EXPECT_THAT(communication(program.backward, graph, stage.mesh), IsEmpty());
  ASSERT_EQ(program.parameters.size(), 1u);
  EXPECT_EQ(program.parameters[0].reduce, stage.roles.data.mask());
}

TEST(Lower, RecomputeTradesMemoryForWork) {
  const auto kept = lower_layer({}, {.micro_batch = 2});
  const auto again = lower_layer({}, {.micro_batch = 2, .recompute = Recompute::kFull});
  EXPECT_EQ(again.layer.saved.value, 2 * 128 * 64 * 2);
  EXPECT_GT(kept.layer.saved, again.layer.saved * 5);
  EXPECT_GT(again.layer.backward.size(), kept.layer.backward.size());
}

// Two passes over the same layer of which the first is detached: it runs forward once, whatever the
// stage recomputes and shards, and keeps nothing.
TEST(Lower, WhatNoGradientPassesKeepsNothing) {
  GraphBuilder b("recycled");
  const Dim hidden{"hidden", 32, 1};
  const ValueId input = b.input("x", {DType::kBf16, {{"batch", 16, 1}, hidden}});
  const ValueId up = b.parameter("up.weight", {{"ffn", 64, 1}, hidden});
  const ValueId down = b.parameter("down.weight", {hidden, {"ffn", 64, 1}});
  const auto layer = [&](const std::string& name, ValueId x) {
    const ValueId y = b.op("relu", name + ".act", {b.op("linear", name + ".up", {x, up})});
    return b.op("add", name + ".add", {x, b.op("linear", name + ".down", {y, down})});
  };
  ValueId x = b.op("scale", "start", {input});
  x = b.op("detach", "cut", {layer("recycle0.layers.0", x)});
  layer("recycle1.layers.0", x);
  const Graph graph = b.finish();
  const auto segments = find_segments(graph);
  ASSERT_EQ(segments.size(), 4u);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    for (const StateSharding zero : {StateSharding::kNone, StateSharding::kZero3}) {
      Stage stage = make_stage({.dp = 2, .zero = zero}, {}, 0);
      stage.recompute = recompute;
      SegmentLowering lowering(graph, segments);
      const SegmentProgram first = lowering.lower(1, stage, {}, 16);
      EXPECT_THAT(first.backward, IsEmpty());
      EXPECT_EQ(first.saved, Bytes(0));
      EXPECT_FALSE(first.forward.empty());
      const SegmentProgram last = lowering.lower(3, stage, {}, 16);
      EXPECT_FALSE(last.backward.empty());
      EXPECT_GT(last.saved, Bytes(0));
    }
  }
}

TEST(Lower, WholePlansHaveOrdersAndSteps) {
  const Graph graph = test_model({.tied = true});
  const auto segments = find_segments(graph);
  Cluster cluster;
  cluster.device_kind.assign(8, 0);
  const Degrees degrees{.pp = 2, .dp = 2, .tp = 2, .micro_batch = 2, .zero = StateSharding::kZero1};
  const Plan plan = make_plan(graph, segments, cluster, {}, 16, degrees, {3});
  EXPECT_THAT(check_plan(plan, graph, segments, cluster), IsEmpty());
  const Program program = lower(plan, graph, segments);
  EXPECT_EQ(program.chunks.size(), 2u);
  ASSERT_FALSE(program.transfers.empty());
  EXPECT_EQ(program.transfers[0].to_chunk, 1);
  EXPECT_EQ(program.transfers[0].bytes.value, 2 * 128 * 64 * 2);
  const auto& order = program.lanes[0].order;
  EXPECT_EQ(std::count_if(order.begin(), order.end(),
                          [](const ScheduleItem& item) { return is_pass(item.phase); }),
            2 * 4);
  // The tied embedding is summed between the stages.
  EXPECT_EQ(program.stages[0].step[0].peer_offset, 4);
  EXPECT_EQ(program.stages[1].step[0].peer_offset, -4);
  for (const StageProgram& stage : program.stages) {
    // A half of the vocabulary by hidden, in fp32.
    EXPECT_EQ(stage.step[0].bytes.value, 1000 * 64 / 2 * 4);
  }
}

}  // namespace
}  // namespace meshwright
