#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "import/onnx/model_writer.h"
#include "import/onnx/onnx.h"

namespace meshwright::onnx {
namespace {

using namespace onnx::testing;  // NOLINT: the writer's short names.
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Imports nodes between x [batch, seq, 8] and y.
std::string fused(std::vector<std::string> nodes, std::vector<std::string> initializers = {},
                  std::vector<std::string> more_outputs = {}, std::string attention = "flash") {
  GraphText g{
      .nodes = std::move(nodes),
      .initializers = {float_tensor("half", {}, {0.5f}), float_tensor("one", {}, {1}),
                       float_tensor("two", {}, {2}), float_tensor("three", {}, {3}),
                       float_tensor("root", {}, {1.41421356f}), float_tensor("eps", {}, {1e-5f}),
                       float_tensor("inner", {}, {0.044715f}),
                       float_tensor("outer", {}, {0.79788456f}),
                       float_tensor("quick", {}, {1.702f}), float_tensor("low", {}, {-1e9f}),
                       weight("w", {8}), weight("b", {8})},
      .inputs = {value("x", {"batch", "seq", "8"}), value("mask", {"batch", "seq"}, 7)},
      .outputs = {value("y", {"", "", ""})},
      .values = {}};
  for (std::string& i : initializers) g.initializers.push_back(std::move(i));
  for (std::string& o : more_outputs) g.outputs.push_back(std::move(o));
  ImportOptions options;
  options.global_batch = 2;
  options.seq = 16;
  options.attention = std::move(attention);
  const Model model = import_model(g.model(14), "m.onnx", options);
  std::string notes;
  for (const std::string& note : model.notes) notes += note + "\n";
  return print_graph(model.graph) + notes;
}

std::vector<std::string> layer_norm(const char* of_variance = "d") {
  const auto last = [](const char* in, const char* out) {
    return node("ReduceMean", {in}, {out}, {attr("axes", Dims{-1})});
  };
  return {last("x", "m"),
          node("Sub", {"x", "m"}, {"d"}),
          node("Pow", {of_variance, "two"}, {"p"}),
          last("p", "v"),
          node("Add", {"v", "eps"}, {"ve"}),
          node("Sqrt", {"ve"}, {"s"}),
          node("Div", {"d", "s"}, {"n"}),
          node("Mul", {"n", "w"}, {"nw"}),
          node("Add", {"nw", "b"}, {"y"}, {}, "norm")};
}

TEST(FuseOnnx, LayerNorm) {
  EXPECT_THAT(fused(layer_norm()), AllOf(HasSubstr("op norm = layer_norm(x, w, b)"),
                                         HasSubstr("1 layer norms"), Not(HasSubstr("sqrt"))));
}

TEST(FuseOnnx, WhatIsNoLayerNormStays) {
  // The variance of something else.
  EXPECT_THAT(fused(layer_norm("w")), AllOf(Not(HasSubstr("layer_norm")), HasSubstr("sqrt")));
  // A mean over another dimension.
  std::vector<std::string> nodes = layer_norm();
  nodes[0] = node("ReduceMean", {"x"}, {"m"}, {attr("axes", Dims{1})});
  EXPECT_THAT(fused(nodes), Not(HasSubstr("layer_norm")));
}

TEST(FuseOnnx, IntermediateValuesThatOthersReadStay) {
  const std::string graph = fused(layer_norm(), {}, {value("nw", {"", "", ""})});
  EXPECT_THAT(graph, AllOf(HasSubstr("layer_norm(x, w)"), Not(HasSubstr("layer_norm(x, w, b)"))));
}

TEST(FuseOnnx, RmsNorm) {
  EXPECT_THAT(fused({node("Mul", {"x", "x"}, {"p"}),
                     node("ReduceMean", {"p"}, {"v"}, {attr("axes", Dims{-1})}),
                     node("Add", {"eps", "v"}, {"ve"}), node("Sqrt", {"ve"}, {"s"}),
                     node("Reciprocal", {"s"}, {"r"}), node("Mul", {"x", "r"}, {"n"}),
                     node("Mul", {"w", "n"}, {"y"}, {}, "norm")}),
              HasSubstr("op norm = rms_norm(x, w)"));
}

TEST(FuseOnnx, Gelu) {
  EXPECT_THAT(fused({node("Div", {"x", "root"}, {"a"}), node("Erf", {"a"}, {"e"}),
                     node("Add", {"e", "one"}, {"p"}), node("Mul", {"x", "p"}, {"m"}),
                     node("Mul", {"m", "half"}, {"y"}, {}, "act")}),
              AllOf(HasSubstr("op act = gelu(x)"), Not(HasSubstr("erf"))));
  EXPECT_THAT(fused({node("Pow", {"x", "three"}, {"c"}), node("Mul", {"c", "inner"}, {"d"}),
                     node("Add", {"x", "d"}, {"s"}), node("Mul", {"s", "outer"}, {"t"}),
                     node("Tanh", {"t"}, {"h"}), node("Add", {"one", "h"}, {"p"}),
                     node("Mul", {"x", "half"}, {"m"}), node("Mul", {"m", "p"}, {"y"}, {}, "act")}),
              HasSubstr("op act = gelu_tanh(x)"));
  // Another factor is another function.
  EXPECT_THAT(fused({node("Div", {"x", "two"}, {"a"}), node("Erf", {"a"}, {"e"}),
                     node("Add", {"e", "one"}, {"p"}), node("Mul", {"x", "p"}, {"m"}),
                     node("Mul", {"m", "half"}, {"y"})}),
              AllOf(Not(HasSubstr("gelu")), HasSubstr("erf")));
}

TEST(FuseOnnx, GatedLinearUnits) {
  EXPECT_THAT(fused({node("Sigmoid", {"x"}, {"s"}), node("Mul", {"s", "x"}, {"y"}, {}, "act")}),
              HasSubstr("op act = silu(x)"));
  EXPECT_THAT(fused({node("Mul", {"x", "quick"}, {"q"}), node("Sigmoid", {"q"}, {"s"}),
                     node("Mul", {"x", "s"}, {"y"}, {}, "act")}),
              HasSubstr("op act = quick_gelu(x)"));
}

// Two heads of 4; `masked` computes "sm" from the scores "sc".
std::vector<std::string> attention(const std::vector<std::string>& masked) {
  std::vector<std::string> nodes = {
      node("MatMul", {"x", "wqkv"}, {"qkv0"}, {}, "/h.0/qkv/MatMul"),
      node("Add", {"bqkv", "qkv0"}, {"qkv"}),
      node("Split", {"qkv"}, {"q", "k", "v"}, {attr("axis", std::int64_t{-1})})};
  for (const char* side : {"q", "k", "v"}) {
    const std::string s(side);
    nodes.push_back(node("Reshape", {s, "split"}, {s + "4"}));
    nodes.push_back(node("Transpose", {s + "4"}, {s + "t"},
                         {attr("perm", s == "k" ? Dims{0, 2, 3, 1} : Dims{0, 2, 1, 3})}));
  }
  nodes.push_back(node("MatMul", {"qt", "kt"}, {"raw"}));
  nodes.push_back(node("Div", {"raw", "two"}, {"sc"}));
  nodes.insert(nodes.end(), masked.begin(), masked.end());
  nodes.push_back(node("Softmax", {"sm"}, {"pr"}, {attr("axis", std::int64_t{-1})}));
  nodes.push_back(node("MatMul", {"pr", "vt"}, {"ct"}, {}, "/h.0/attn"));
  nodes.push_back(node("Transpose", {"ct"}, {"cs"}, {attr("perm", Dims{0, 2, 1, 3})}));
  nodes.push_back(node("Reshape", {"cs", "merge"}, {"cm"}));
  nodes.push_back(node("MatMul", {"cm", "wo"}, {"y"}, {}, "/h.0/proj"));
  return nodes;
}

std::vector<std::string> attention_weights() {
  return {weight("wqkv", {8, 24}),
          weight("bqkv", {24}),
          weight("wo", {8, 8}),
          int_tensor("split", {4}, {0, 0, 2, 4}),
          int_tensor("merge", {3}, {0, 0, 8}),
          int_tensor("i1", {}, {1}),
          int_tensor("i0", {}, {0}),
          int_tensor("ii", {}, {1}),
          float_tensor("f1", {}, {1}),
          int_tensor("a12", {2}, {1, 2})};
}

// The lower triangle of ones by way of the sequence length, as exporters write it.
std::vector<std::string> triangle() {
  return {
      node("Shape", {"x"}, {"shape"}),
      node("Gather", {"shape", "ii"}, {"t"}),
      node("Unsqueeze", {"t", "i0v"}, {"t1"}),
      node("Concat", {"t1", "t1"}, {"tt"}, {attr("axis", std::int64_t{0})}),
      node("ConstantOfShape", {"tt"}, {"ones"}, {tensor_attr("value", float_tensor("", {1}, {1}))}),
      node("Trilu", {"ones"}, {"tri"}, {attr("upper", std::int64_t{0})})};
}

TEST(FuseOnnx, Attention) {
  const std::string graph =
      fused(attention({node("Identity", {"sc"}, {"sm"})}), attention_weights());
  EXPECT_THAT(
      graph,
      HasSubstr(
          "op h.0.qkv.MatMul.q = linear(x, wqkv.q, bqkv.q) -> bf16[batch=2, seq=16, heads=8/4]"));
  EXPECT_THAT(
      graph,
      HasSubstr("{kernel=\"flash\", scale=0.5} -> bf16[batch=2, seq=16, heads=2, head_dim=4]"));
  EXPECT_THAT(graph, AllOf(Not(HasSubstr("transpose")), Not(HasSubstr("softmax")),
                           Not(HasSubstr("causal"))));
  EXPECT_THAT(
      fused(attention({node("Identity", {"sc"}, {"sm"})}), attention_weights(), {}, "unfused"),
      HasSubstr("kernel=\"unfused\""));
}

TEST(FuseOnnx, CausalMasksAreReadOffTheirValues) {
  std::vector<std::string> masked = triangle();
  masked.push_back(node("Cast", {"tri"}, {"keep"}, {attr("to", std::int64_t{9})}));
  masked.push_back(node("Where", {"keep", "sc", "low"}, {"sm"}));
  std::vector<std::string> weights = attention_weights();
  weights.push_back(int_tensor("i0v", {1}, {0}));
  EXPECT_THAT(fused(attention(masked), weights), HasSubstr("{causal=true, kernel=\"flash\""));
  // The other way round it is no causal mask, and the scores stay.
  masked.back() = node("Where", {"keep", "low", "sc"}, {"sm"});
  EXPECT_THAT(fused(attention(masked), weights),
              AllOf(Not(HasSubstr("causal=")), HasSubstr("softmax")));
}

TEST(FuseOnnx, PaddingMasksAreLeftToTheKernelAndSaidSo) {
  const std::vector<std::string> masked = {
      node("Unsqueeze", {"mask", "a12"}, {"m4"}),
      node("Cast", {"m4"}, {"mf"}, {attr("to", std::int64_t{1})}),
      node("Sub", {"f1", "mf"}, {"mi"}), node("Mul", {"mi", "low"}, {"ml"}),
      node("Add", {"sc", "ml"}, {"sm"})};
  const std::string graph = fused(attention(masked), attention_weights());
  EXPECT_THAT(graph, AllOf(HasSubstr("= attention("),
                           HasSubstr("1 masks of padding left to the attention kernel")));
}

TEST(FuseOnnx, BiasesOfScoresStay) {
  const std::string graph = fused(attention({node("Add", {"sc", "rel"}, {"sm"})}), [] {
    auto weights = attention_weights();
    weights.push_back(weight("rel", {1, 2, 16, 16}));
    return weights;
  }());
  EXPECT_THAT(graph,
              AllOf(HasSubstr("param rel"), HasSubstr("= attention("), Not(HasSubstr("softmax("))));
}

}  // namespace
}  // namespace meshwright::onnx
