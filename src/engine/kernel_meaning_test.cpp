// What kernels compute, against definitions written out by hand.

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/call_kernel.h"
#include "engine/split_kernel.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

constexpr double kTolerance = 1e-12;

Attr integer(std::int64_t v) { return v; }

TensorType floats(std::vector<Dim> dims) { return {DType::kF32, std::move(dims)}; }

// One result of an operator on whole operands.
at::Tensor result_of(const KernelCase& c) { return run_whole(c).results.at(0); }
KernelCase make(std::string_view kind, Attrs attrs, std::vector<TensorType> inputs) {
  return draw_case(find_op(kind), {std::move(attrs), std::move(inputs)});
}

// Attention element by element. Tensors are [b, s, heads, d].
at::Tensor attention_by_hand(const KernelCase& c) {
  const at::Tensor &q = c.operands[0], &k = c.operands[1], &v = c.operands[2];
  at::Tensor bias, sinks;
  for (std::size_t i = 3; i < c.operands.size(); ++i) {
    (c.operands[i].dim() == 1 ? sinks : bias) = c.operands[i];
  }
  const std::int64_t heads = q.size(2), repeat = heads / k.size(2);
  const bool causal = attr_bool(c.attrs, "causal", false);
  const std::int64_t window = attr_int(c.attrs, "window", 0);
  const std::int64_t offset = attr_int(c.attrs, "query_offset", 0);
  const double scale = attr_float(c.attrs, "scale", 1 / std::sqrt(static_cast<double>(q.size(3))));
  const double cap = attr_float(c.attrs, "softcap", 0);
  at::Tensor out = at::zeros({q.size(0), q.size(1), heads, v.size(3)}, at::kDouble);
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < q.size(1); ++i) {
        double total = sinks.defined() ? std::exp(sinks[h].item<double>()) : 0;
        at::Tensor sum = at::zeros({v.size(3)}, at::kDouble);
        for (std::int64_t j = 0; j < k.size(1); ++j) {
          const std::int64_t distance = i + offset - j;
          if (causal && (distance < 0 || (window > 0 && distance >= window))) continue;
          if (!causal && window > 0 && (distance > window / 2 || -distance > (window - 1) / 2)) {
            continue;
          }
          double score = scale * (q[b][i][h] * k[b][j][h / repeat]).sum().item<double>();
          if (cap > 0) score = cap * std::tanh(score / cap);
          if (bias.defined()) score += bias[h][i][j].item<double>();
          if (attr_bool(c.attrs, "alibi", false)) {
            // Six heads: four slopes 2^(-2 i), then the odd ones of eight heads.
            constexpr double kExponents[] = {-2, -4, -6, -8, -1, -3};
            score -= std::exp2(kExponents[h]) * static_cast<double>(std::abs(distance));
          }
          total += std::exp(score);
          sum += std::exp(score) * v[b][j][h / repeat];
        }
        if (total > 0) out[b][i][h] = sum / total;
      }
    }
  }
  return out;
}

TEST(KernelMeaning, Attention) {
  const TensorType q = floats({{"batch", 2}, {"seq", 6}, {"heads", 6}, {"head_dim", 4}});
  const TensorType k = floats({{"batch", 2}, {"seq", 6}, {"kv_heads", 2}, {"head_dim", 4}});
  const TensorType v = floats({{"batch", 2}, {"seq", 6}, {"kv_heads", 2}, {"head_dim", 3}});
  const TensorType few = floats({{"batch", 2}, {"seq", 4}, {"kv_heads", 2}, {"head_dim", 4}});
  const TensorType half = floats({{"batch", 2}, {"seq", 3}, {"heads", 6}, {"head_dim", 4}});
  const TensorType bias = floats({{"heads", 6}, {"seq", 6}, {"keys", 6}});
  const TensorType sinks = floats({{"heads", 6}});
  const std::vector<OpDef::Example> examples = {
      {{}, {q, k, v}},
      {{{"causal", true}, {"softcap", 0.5}}, {q, k, v}},
      {{{"causal", true}, {"window", integer(2)}, {"sinks", true}}, {q, k, v, sinks}},
      {{{"window", integer(3)}, {"alibi", true}}, {q, k, v}},
      {{{"window", integer(2)}, {"scale", 1.5}}, {q, k, v, bias}},
      {{{"causal", true}, {"alibi", true}}, {q, k, v, bias, sinks}},
      {{{"causal", true}, {"query_offset", integer(3)}, {"window", integer(4)}}, {half, k, v}},
      // The last queries see no key.
      {{{"causal", true}, {"window", integer(2)}}, {q, few, few}},
  };
  for (const OpDef::Example& example : examples) {
    const KernelCase c = draw_case(find_op("attention"), example);
    EXPECT_LE(difference(result_of(c), attention_by_hand(c)), kTolerance);
  }
}

TEST(KernelMeaning, Rope) {
  const KernelCase c = make("rope", {{"rotary_dim", integer(4)}, {"offset", integer(5)}},
                            {floats({{"batch", 1}, {"seq", 3}, {"heads", 2}, {"head_dim", 6}})});
  const at::Tensor& x = c.operands[0];
  at::Tensor y = x.clone();
  for (std::int64_t s = 0; s < 3; ++s) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < 2; ++i) {
        const double angle = static_cast<double>(s + 5) * (i == 0 ? 1 : 0.01);
        const double a = x[0][s][h][i].item<double>(), b = x[0][s][h][i + 2].item<double>();
        y[0][s][h][i] = a * std::cos(angle) - b * std::sin(angle);
        y[0][s][h][i + 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  EXPECT_LE(difference(result_of(c), y), kTolerance);
}

TEST(KernelMeaning, Norms) {
  const TensorType x = floats({{"seq", 3}, {"hidden", 8}});
  const TensorType w = floats({{"hidden", 8}});
  const KernelCase rms = make("rms_norm", {{"eps", 0.25}}, {x, w});
  const at::Tensor square = rms.operands[0].square().mean(-1, true);
  EXPECT_LE(difference(result_of(rms), rms.operands[0] / (square + 0.25).sqrt() * rms.operands[1]),
            kTolerance);
  const KernelCase layer = make("layer_norm", {{"eps", 0.25}}, {x, w, w});
  const at::Tensor mean = layer.operands[0] - layer.operands[0].mean(-1, true);
  const at::Tensor normal = mean / (mean.square().mean(-1, true) + 0.25).sqrt();
  EXPECT_LE(difference(result_of(layer), normal * layer.operands[1] + layer.operands[2]),
            kTolerance);
}

TEST(KernelMeaning, CrossEntropy) {
  KernelCase c = make("cross_entropy", {{"z_loss", 0.1}},
                      {floats({{"seq", 5}, {"vocab", 7}}), {DType::kI64, {{"seq", 5}}}});
  c.operands[1] = at::tensor({3, 0, 6, -100, 7}, at::kLong);
  const at::Tensor& logits = c.operands[0];
  const at::Tensor lse = logits.logsumexp(-1);
  const KernelRun run = run_whole(c);
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto label = c.operands[1][i].item<std::int64_t>();
    double loss = 0;
    at::Tensor gradient = at::zeros({7}, at::kDouble);
    if (label >= 0 && label < 7) {
      const double l = lse[i].item<double>();
      loss = l - logits[i][label].item<double>() + 0.1 * l * l;
      gradient = logits[i].softmax(0) * (1 + 0.2 * l);
      gradient[label] -= 1;
    }
    EXPECT_NEAR(run.results[0][i].item<double>(), loss, kTolerance);
    EXPECT_LE(difference(run.gradients[0][i], gradient * c.seeds[0][i]), kTolerance);
  }
}

TEST(KernelMeaning, ClampedSilu) {
  KernelCase c = make("gated", {{"act", std::string("clamped_silu")}},
                      {floats({{"ffn", 2}}), floats({{"ffn", 2}})});
  c.operands[0] = at::tensor({9.0, -9.0}, at::kDouble);
  c.operands[1] = at::tensor({0.5, 8.0}, at::kDouble);
  const at::Tensor y = result_of(c);
  EXPECT_NEAR(y[0].item<double>(), 7 / (1 + std::exp(-1.702 * 7)) * 1.5, kTolerance);
  EXPECT_NEAR(y[1].item<double>(), -9 / (1 + std::exp(1.702 * 9)) * 8, kTolerance);
}

TEST(KernelMeaning, RouterChoosesWithinTheBestGroups) {
  KernelCase c = make("moe_router",
                      {{"top_k", integer(2)},
                       {"groups", integer(2)},
                       {"top_k_groups", integer(1)},
                       {"score", std::string("sigmoid")}},
                      {floats({{"batch", 1}, {"seq", 1}, {"hidden", 1}}),
                       floats({{"experts", 6}, {"hidden", 1}}), floats({{"experts", 6}})});
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  c.operands[0].fill_(1);
  // The first group has the best expert, the second the best pair once the bias counts.
  c.operands[1] = at::tensor({3.0, -3.0, -3.0, 1.0, 0.5, 0.0}, at::kDouble).view({6, 1});
  c.operands[2] = at::tensor({0.0, 0.0, 0.0, 0.0, 0.0, 0.2}, at::kDouble);
  const at::Tensor p = result_of(c).view({6});
  // 0.73, 0.62, 0.5 + 0.2: the bias chooses, and does not weigh.
  const double sum = sigmoid(1) + sigmoid(0);
  EXPECT_LE(difference(p, at::tensor({0.0, 0.0, 0.0, sigmoid(1) / sum, 0.0, sigmoid(0) / sum},
                                     at::kDouble)),
            kTolerance);
}

TEST(KernelMeaning, RouterBiasOfSoftmaxIsPartOfTheLogits) {
  KernelCase c = make("moe_router", {{"top_k", integer(2)}},
                      {floats({{"batch", 1}, {"seq", 1}, {"hidden", 1}}),
                       floats({{"experts", 3}, {"hidden", 1}}), floats({{"experts", 3}})});
  c.operands[0].fill_(1);
  c.operands[1] = at::tensor({1.0, 2.0, 3.0}, at::kDouble).view({3, 1});
  c.operands[2] = at::tensor({5.0, 0.0, 0.0}, at::kDouble);
  const at::Tensor p = result_of(c).view({3});
  EXPECT_NEAR(p[0].item<double>(), std::exp(6) / (std::exp(6) + std::exp(3)), kTolerance);
  EXPECT_EQ(p[1].item<double>(), 0);
}

// Ten tokens, four rows: windows 0..2, 2..5, 5..7, 7..10.
TEST(KernelMeaning, DispatchTakesTheFirstTokenOfAWindow) {
  const TensorType probs = floats({{"batch", 1}, {"seq", 10}, {"experts", 5}});
  KernelCase c = make("moe_dispatch", {{"top_k", integer(2)}},
                      {floats({{"batch", 1}, {"seq", 10}, {"hidden", 1}}), probs});
  c.operands[0] = at::arange(1, 11, at::kDouble).view({1, 10, 1});
  c.operands[1].zero_();
  for (const int token : {1, 3, 4, 9}) c.operands[1][0][token][2] = 0.5;
  const at::Tensor y = result_of(c);
  EXPECT_LE(difference(y[2].view({4}), at::tensor({2.0, 4.0, 0.0, 10.0}, at::kDouble)), 0);
  EXPECT_EQ(y.sum().item<double>(), 16);

  KernelCase back = make("moe_combine", {{"top_k", integer(2)}}, {c.outputs[0], probs});
  back.operands[0] = y;
  back.operands[1] = c.operands[1];
  const at::Tensor x = result_of(back).view({10});
  EXPECT_LE(
      difference(x, at::tensor({0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0}, at::kDouble)),
      0);
}

TEST(KernelMeaning, DispatchNeedsWholeWindows) {
  const TensorType x = floats({{"batch", 1}, {"seq", 16}, {"hidden", 2}});
  const TensorType probs = floats({{"batch", 1}, {"seq", 16}, {"experts", 8}});
  const KernelCase c = make("moe_dispatch", {{"top_k", integer(2)}}, {x, probs});
  const std::vector<Box> inputs = {{{0, 1}, {0, 6}, {0, 2}}, {{0, 1}, {0, 6}, {0, 8}}};
  const std::vector<Box> outputs = {{{0, 8}, {0, 1}, {0, 2}, {0, 2}}};
  try {
    kernel_of(*c.def, {c.attrs, c.inputs, c.outputs, inputs, outputs});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("tokens 0..6 are not those of the experts' rows 0..2, 0..8"));
    EXPECT_THAT(e.hint(), HasSubstr("parts that divides 4"));
  }
}

TEST(KernelMeaning, AttentionNeedsTheKvHeadsOfItsQueries) {
  const TensorType q = floats({{"batch", 1}, {"seq", 2}, {"heads", 6}, {"head_dim", 2}});
  const TensorType k = floats({{"batch", 1}, {"seq", 2}, {"kv_heads", 3}, {"head_dim", 2}});
  const KernelCase c = make("attention", {}, {q, k, k});
  const Box part = {{0, 1}, {0, 2}, {0, 3}, {0, 2}};
  const Box keys = {{0, 1}, {0, 2}, {0, 1}, {0, 2}};
  const std::vector<Box> inputs = {part, keys, keys}, outputs = {part};
  try {
    kernel_of(*c.def, {c.attrs, c.inputs, c.outputs, inputs, outputs});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("query heads 0..3 read kv heads 0..2, but the part has 0..1"));
  }
}

// T5's buckets of a bidirectional table of 8 and a causal one of 4, and Swin's of a window of 2.
TEST(KernelMeaning, RelativeBias) {
  const auto buckets = [](std::int64_t count, std::int64_t queries, std::int64_t keys,
                          bool causal) {
    KernelCase c = make(
        "relative_bias",
        {{"query_length", integer(queries)}, {"key_length", integer(keys)}, {"causal", causal}},
        {floats({{"buckets", count}, {"heads", 1}})});
    c.operands[0] = at::arange(count, at::kDouble).view({count, 1});
    return result_of(c)[0];
  };
  // Sides of 4: distances 0 and 1 exact, then log(d / 2) / log(64) * 2 steps: 16 begins the last.
  const at::Tensor both = buckets(8, 20, 20, false);
  EXPECT_EQ(both[3][3].item<double>(), 0);
  EXPECT_EQ(both[3][2].item<double>(), 1);
  EXPECT_EQ(both[3][4].item<double>(), 5);
  EXPECT_EQ(both[15][0].item<double>(), 2);
  EXPECT_EQ(both[17][0].item<double>(), 3);
  EXPECT_EQ(both[0][17].item<double>(), 7);
  const at::Tensor past = buckets(4, 20, 20, true);
  EXPECT_EQ(past[0][5].item<double>(), 0);
  EXPECT_EQ(past[15][0].item<double>(), 2);
  EXPECT_EQ(past[17][0].item<double>(), 3);
  const at::Tensor window = buckets(9, 4, 4, false);
  // Positions (0,0) and (1,1): offsets -1, -1 and 1, 1.
  EXPECT_EQ(window[0][3].item<double>(), 0);
  EXPECT_EQ(window[3][0].item<double>(), 8);
  EXPECT_EQ(window[0][1].item<double>(), 3);
}

TEST(KernelMeaning, DropoutKeepsAShareAndScalesIt) {
  KernelCase c = make("dropout", {{"p", 0.25}}, {floats({{"batch", 64}, {"hidden", 64}})});
  c.operands[0].fill_(3);
  const at::Tensor y = result_of(c);
  EXPECT_TRUE(((y == 0) | ((y - 4).abs() < 1e-12)).all().item<bool>());
  EXPECT_NEAR((y != 0).to(at::kDouble).mean().item<double>(), 0.75, 0.03);
}

// Samples 2 and 3 as a micro-batch of their own, folded with two rows each.
TEST(KernelMeaning, DropoutOfASampleDoesNotDependOnItsMicroBatch) {
  const auto mask = [](std::int64_t samples, std::int64_t first) {
    const KernelCase c =
        make("dropout", {{"p", 0.5}}, {floats({{"batch", 2 * samples, 2}, {"hidden", 16}})});
    const Box box = {{0, 2 * samples}, {0, 16}};
    const std::vector<Box> boxes = {box};
    const Kernel kernel = kernel_of(*c.def, {c.attrs, c.inputs, c.outputs, boxes, boxes});
    KernelServices services;
    services.draw = {9, first};
    const std::vector<at::Tensor> operands = {at::ones({2 * samples, 16}, at::kDouble)};
    const std::vector<DType> types = {DType::kF32};
    return call_kernel(kernel, operands, types, parse_numerics("float64"), services)[0];
  };
  EXPECT_TRUE(mask(2, 2).equal(mask(4, 0).slice(0, 4, 8)));
  EXPECT_FALSE(mask(2, 1).equal(mask(4, 0).slice(0, 4, 8)));
}

}  // namespace
}  // namespace meshwright
