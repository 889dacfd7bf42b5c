// Published formulas that whole layers must reproduce.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "ops/builder.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

constexpr double kSeq = 2048, kBatch = 4, kHidden = 12288, kHeads = 96, kHeadDim = 128;

struct Layer {
  std::string kernel = "unfused";
  bool causal = true;
  double dropout = 0.1;
};

Dim dim(const char* name, double size, std::int64_t unit = 1) {
  return {name, static_cast<std::int64_t>(size), unit};
}

// A GPT layer as in Korthikanti et al. 2022, figure 2.
Graph gpt_layer(const Layer& layer) {
  GraphBuilder b("gpt", DType::kF16);
  const Dim hidden = dim("hidden", kHidden);
  const ValueId x = b.input("x", {DType::kF16, {dim("batch", kBatch), dim("seq", kSeq), hidden}});
  const auto dropout = [&](const char* name, ValueId in) {
    return b.op("dropout", name, {in}, {{"p", layer.dropout}});
  };
  const ValueId norm = b.layer_norm("ln_1", x);
  std::vector<ValueId> qkv;
  for (const char* name : {"q", "k", "v"}) {
    const ValueId flat = b.linear(fmt::format("{}_proj", name), norm,
                                  dim("heads", kHidden, static_cast<std::int64_t>(kHeadDim)), true);
    qkv.push_back(b.op("reshape", name, {flat},
                       {{"pattern", std::string("b s (h d) -> b s h d")},
                        {"sizes", fmt::format("d={}", kHeadDim)},
                        {"names", std::string("d=head_dim")}}));
  }
  const ValueId attention =
      b.op("attention", "attention", qkv,
           {{"kernel", layer.kernel}, {"causal", layer.causal}, {"dropout", layer.dropout}});
  const ValueId merged =
      b.op("reshape", "merge", {attention}, {{"pattern", std::string("b s h d -> b s (h d)")}});
  EXPECT_EQ(to_string(b.type(merged)), "f16[batch=4, seq=2048, heads=12288/128]");
  const ValueId projected = dropout("drop_1", b.linear("o_proj", merged, hidden, true));
  const ValueId middle = b.op("add", "add_1", {x, projected});
  const ValueId up = b.linear("fc_1", b.layer_norm("ln_2", middle), dim("ffn", 4 * kHidden), true);
  const ValueId down = b.linear("fc_2", b.op("gelu", "gelu", {up}), hidden, true);
  b.op("add", "add_2", {middle, dropout("drop_2", down)});
  return b.finish();
}

struct Totals {
  double saved = 0, products = 0, weights = 0, backward = 0;
};

// Kept bytes (every storage once) and FLOPs of the matrix units.
Totals totals(const Graph& graph) {
  Totals result;
  std::set<ValueId> kept;
  const std::vector<ValueId> roots = storage_roots(graph);
  for (const Op& op : graph.ops) {
    std::vector<TensorType> inputs;
    std::vector<TensorType> outputs;
    for (const ValueId id : op.inputs) inputs.push_back(graph.value(id).type);
    for (const ValueId id : op.outputs) outputs.push_back(graph.value(id).type);
    const OpDef& def = find_op(op.kind);
    const OpContext context{op.attrs, inputs, outputs};
    const Saved saved = saved_of(def, context);
    for (const int i : saved.inputs) kept.insert(roots[op.inputs[i].index()]);
    for (const int i : saved.outputs) kept.insert(roots[op.outputs[i].index()]);
    result.saved += saved.extra.value;
    const Work work = work_of(def, context);
    if (work.kernel != KernelClass::kMatmul && work.kernel != KernelClass::kAttention) continue;
    result.products += work.forward_flops.value;
    result.backward += (work.backward_input_flops + work.backward_weight_flops).value;
    result.weights += work.backward_weight_flops.value;
  }
  for (const ValueId id : kept) {
    const Value& value = graph.value(id);
    const bool free = value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer;
    if (!free) result.saved += value.type.bytes().value;
  }
  return result;
}

// Korthikanti et al. 2022, equation 1: s b h (34 + 5 a s / h).
TEST(TransformerLayer, KeepsWhatKorthikantiCounts) {
  const double sbh = kSeq * kBatch * kHidden;
  const double scores = 5 * kHeads * kSeq * kSeq * kBatch;
  EXPECT_NEAR(totals(gpt_layer({})).saved / (34 * sbh + scores), 1, 0.001);
  EXPECT_NEAR(totals(gpt_layer({.kernel = "flash"})).saved / (34 * sbh), 1, 0.002);
  // Without dropout both masks and the copy of the weights go: 32 sbh + 2 a s^2 b.
  EXPECT_NEAR(totals(gpt_layer({.dropout = 0})).saved / (32 * sbh + 0.4 * scores), 1, 0.001);
}

// Narayanan et al. 2021, appendix: a layer's forward pass is 24 b s h^2 + 4 b s^2 h FLOPs, the
// backward pass twice that. Flash kernels leave out the masked half and recompute scores backward.
TEST(TransformerLayer, ComputesWhatNarayananCounts) {
  const double dense = 24 * kBatch * kSeq * kHidden * kHidden;
  const double scores = 4 * kBatch * kSeq * kSeq * kHidden;
  const Totals unfused = totals(gpt_layer({}));
  EXPECT_DOUBLE_EQ(unfused.products, dense + scores);
  EXPECT_DOUBLE_EQ(unfused.backward, 2 * (dense + scores));
  EXPECT_DOUBLE_EQ(unfused.weights, dense);
  const Totals flash = totals(gpt_layer({.kernel = "flash"}));
  EXPECT_DOUBLE_EQ(flash.products, dense + scores / 2);
  EXPECT_DOUBLE_EQ(flash.backward, 2 * dense + 2.5 * scores / 2);
  EXPECT_DOUBLE_EQ(totals(gpt_layer({.kernel = "flash", .causal = false})).products,
                   dense + scores);
}

// A Llama layer with flash attention: PyTorch keeps two norm inputs and results (8), rotated q, k
// and v (2 + 4 kv/h), the attention result (2), the MLP's gate, up and product (6 f/h), times sbh
// bytes.
TEST(TransformerLayer, KeepsWhatALlamaLayerNeeds) {
  const double kv_heads = 8, ffn = 28672, hidden = 8192, heads = 64, seq = 4096;
  GraphBuilder b("llama");
  ValueId x =
      b.input("x", {DType::kBf16, {dim("batch", 1), dim("seq", seq), dim("hidden", hidden)}});
  const ValueId norm = b.rms_norm("norm_1", x);
  const auto project = [&](const char* name, const char* label, double n, bool rotate) {
    const ValueId flat =
        b.linear(fmt::format("{}_proj", name), norm, dim(label, n * 128, 128), false);
    const ValueId split = b.op("reshape", name, {flat},
                               {{"pattern", std::string("b s (h d) -> b s h d")},
                                {"sizes", std::string("d=128")},
                                {"names", std::string("d=head_dim")}});
    return rotate ? b.op("rope", fmt::format("{}_rope", name), {split}) : split;
  };
  const ValueId q = project("q", "heads", heads, true);
  const ValueId k = project("k", "kv_heads", kv_heads, true);
  const ValueId v = project("v", "kv_heads", kv_heads, false);
  const ValueId attention = b.op("attention", "attention", {q, k, v}, {{"causal", true}});
  EXPECT_EQ(to_string(b.type(attention)), "bf16[batch=1, seq=4096, heads=64, head_dim=128]");
  const ValueId merged =
      b.op("reshape", "merge", {attention}, {{"pattern", std::string("b s h d -> b s (h d)")}});
  EXPECT_EQ(b.type(merged).dims[2], dim("heads", hidden, 128));
  x = b.op("add", "add_1", {x, b.linear("o_proj", merged, dim("hidden", hidden), false)});
  const ValueId norm2 = b.rms_norm("norm_2", x);
  const ValueId gate = b.linear("gate", norm2, dim("ffn", ffn), false);
  const ValueId up = b.linear("up", norm2, dim("ffn", ffn), false);
  const ValueId down =
      b.linear("down", b.op("gated", "act", {gate, up}), dim("hidden", hidden), false);
  b.op("add", "add_2", {x, down});
  const double expected = seq * hidden * (8 + 2 + 4 * kv_heads / heads + 2 + 6 * ffn / hidden);
  EXPECT_NEAR(totals(b.finish()).saved / expected, 1, 0.001);
}

}  // namespace
}  // namespace meshwright
