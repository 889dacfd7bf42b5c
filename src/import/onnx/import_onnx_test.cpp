#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "import/onnx/model_writer.h"
#include "import/onnx/onnx.h"

namespace meshwright::onnx {
namespace {

using namespace onnx::testing;  // NOLINT: the writer's short names.
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Model import(const GraphText& g, const ImportOptions& options = {}, std::int64_t opset = 17) {
  return import_model(g.model(opset), "m.onnx", options);
}

std::string text(const Model& model) { return print_graph(model.graph); }

std::string refusal(const GraphText& g, const ImportOptions& options) {
  try {
    import(g, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

ImportOptions sized(std::int64_t batch, std::int64_t seq) {
  ImportOptions options;
  options.global_batch = batch;
  options.seq = seq;
  return options;
}

GraphText mlp() {
  return {.nodes = {node("Gemm", {"x", "w", "b"}, {"h"}, {attr("transB", std::int64_t{1})}, "fc1"),
                    node("Relu", {"h"}, {"r"}, {}, "act"),
                    node("MatMul", {"r", "v"}, {"y"}, {}, "fc2")},
          .initializers = {weight("w", {16, 8}), weight("b", {16}), weight("v", {16, 4})},
          .inputs = {value("x", {"batch", "8"})},
          .outputs = {value("y", {"batch", "4"})},
          .values = {}};
}

TEST(ImportOnnx, LayersAndParameters) {
  const Model model = import(mlp(), sized(6, 0));
  EXPECT_EQ(model.family, "onnx");
  EXPECT_EQ(model.global_batch, 6);
  EXPECT_EQ(parameter_count(model.graph), 16 * 8 + 16 + 16 * 4);
  const std::string graph = text(model);
  EXPECT_THAT(graph, HasSubstr("op fc1 = linear(x, w, b) -> bf16[batch=6, features=16]"));
  // Weights of a product are [in, out] in ONNX and [out, in] here.
  EXPECT_THAT(graph, HasSubstr("param v bf16[features=4, features=16]"));
  EXPECT_THAT(graph, HasSubstr("op fc2 = linear(act, v) -> bf16[batch=6, features=4]"));
}

TEST(ImportOnnx, FilesAndTheirExtension) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "mlp.onnx";
  std::ofstream(path, std::ios::binary) << mlp().model();
  EXPECT_EQ(meshwright::import_model(path.string(), sized(6, 0)).graph,
            import(mlp(), sized(6, 0)).graph);
  try {
    meshwright::import_model("/nowhere/model.onnx", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("/nowhere/model.onnx: no such file"));
  }
}

TEST(ImportOnnx, TheBatchIsFoundByProbing) {
  // Static inputs: the first dimension is the batch when the model exists at another one.
  GraphText g = mlp();
  g.inputs = {value("x", {"2", "8"})};
  EXPECT_EQ(import(g).global_batch, 2);
  EXPECT_EQ(import(g, sized(32, 0)).global_batch, 32);
  EXPECT_THAT(text(import(g, sized(32, 0))),
              HasSubstr("op fc2 = linear(act, v) -> bf16[batch=32, features=4]"));
  // Baked into a reshape as its first size, it still means the batch; elsewhere it cannot change
  // and nothing is called batch.
  g.nodes.push_back(node("Reshape", {"y", "s"}, {"z"}, {}, "flat"));
  g.initializers.push_back(int_tensor("s", {3}, {2, 2, 2}));
  g.outputs = {value("z", {"2", "2", "2"})};
  EXPECT_THAT(text(import(g, sized(32, 0))),
              HasSubstr("-> bf16[batch=32, features=2, features=2]"));
  g.initializers.back() = int_tensor("s", {2}, {1, 8});
  g.outputs = {value("z", {"1", "8"})};
  EXPECT_THAT(text(import(g)), AllOf(HasSubstr("samples=2"), Not(HasSubstr("batch="))));
  EXPECT_THAT(refusal(g, sized(4, 0)),
              AllOf(HasSubstr("exported for a batch of 2 and has none of 4"),
                    HasSubstr("\"flat\" (Reshape)")));
}

TEST(ImportOnnx, WeightsThatNodesHoldAreTrained) {
  GraphText g = mlp();
  g.initializers = {int_tensor("shape", {2}, {16, 8}), weight("b", {16})};
  g.nodes.insert(g.nodes.begin(),
                 {node("ConstantOfShape", {"shape"}, {"w"}),
                  node("Constant", {}, {"v"}, {tensor_attr("value", weight("", {16, 4}))})});
  EXPECT_EQ(parameter_count(import(g).graph), 16 * 8 + 16 + 16 * 4);
}

TEST(ImportOnnx, SequencesAndShapeArithmetic) {
  // Reshape to [batch, seq * 2, 4] by way of Shape, Gather, Mul, Concat.
  GraphText g{
      .nodes = {node("Shape", {"x"}, {"s"}), node("Gather", {"s", "zero"}, {"b"}),
                node("Gather", {"s", "one"}, {"t"}), node("Mul", {"t", "two"}, {"t2"}),
                node("Concat", {"b", "t2", "four"}, {"to"}, {attr("axis", std::int64_t{0})}),
                node("Reshape", {"x", "to"}, {"y"}, {}, "view")},
      .initializers = {int_tensor("zero", {1}, {0}), int_tensor("one", {1}, {1}),
                       int_tensor("two", {1}, {2}), int_tensor("four", {1}, {4})},
      .inputs = {value("x", {"batch", "seq", "8"})},
      .outputs = {value("y", {"batch", "", "4"})},
      .values = {}};
  const Model model = import(g, sized(3, 10));
  EXPECT_THAT(text(model), HasSubstr("-> bf16[batch=3, seq=20/2, features=4]"));
  EXPECT_EQ(model.seq, 10);
  EXPECT_THAT(model.notes, Contains("5 nodes computed from constants alone are folded"));
  EXPECT_THAT(refusal(mlp(), sized(3, 10)), HasSubstr("written for sequences of 1"));
}

TEST(ImportOnnx, UnknownDimensionsAreNamedInTheNotes) {
  GraphText g = mlp();
  g.nodes = {node("Relu", {"x"}, {"y"})};
  g.inputs = {value("x", {"batch", "rows"})};
  EXPECT_THAT(import(g).notes, Contains("taken as 64: dimension \"rows\" of input \"x\""));
}

TEST(ImportOnnx, OperatorsWithoutARuleAreListed) {
  GraphText g = mlp();
  g.nodes = {node("Relu", {"x"}, {"h"}), node("TopK", {"h", "k"}, {"v", "i"}, {}, "top"),
             node("NonMaxSuppression", {"h"}, {"n"}, {}, "nms", "com.example"),
             node("Add", {"v", "v"}, {"y"})};
  g.initializers = {int_tensor("k", {1}, {2})};
  g.values = {value("n", {"10", "3"}, 7)};
  g.outputs = {value("y", {"batch", "2"}), value("n", {"10", "3"}, 7)};
  const Model model = import(g, sized(4, 0));
  EXPECT_THAT(model.notes, Contains("replicate-only: 1 x TopK, 1 x com.example.NonMaxSuppression"));
  EXPECT_THAT(text(model),
              HasSubstr(R"(results="bf16[batch=4, features=2]; i64[batch=4, features=2]")"));
}

TEST(ImportOnnx, ControlFlow) {
  const auto branch = [](const char* width) {
    return GraphText{.nodes = {node("Relu", {"x"}, {"o"})},
                     .initializers = {},
                     .inputs = {},
                     .outputs = {value("o", {"2", width})},
                     .values = {}}
        .graph();
  };
  GraphText wide{.nodes = {node("Concat", {"x", "x"}, {"o"}, {attr("axis", std::int64_t{1})})},
                 .initializers = {},
                 .inputs = {},
                 .outputs = {value("o", {"2", "8"})},
                 .values = {}};
  GraphText g{.nodes = {node(
                  "If", {"c"}, {"y"},
                  {graph_attr("then_branch", branch("4")), graph_attr("else_branch", branch("4"))},
                  "choice")},
              .initializers = {},
              .inputs = {value("x", {"2", "4"}), value("c", {}, 9)},
              .outputs = {value("y", {"", ""})},
              .values = {}};
  EXPECT_THAT(text(import(g)), HasSubstr("op choice = opaque(c, x) {op=\"If\""));
  g.nodes = {node("If", {"c"}, {"y"},
                  {graph_attr("then_branch", branch("4")), graph_attr("else_branch", wide.graph())},
                  "choice")};
  EXPECT_THAT(refusal(g, {}),
              AllOf(HasSubstr("\"choice\" (If)"), HasSubstr("[2, 4] in one branch and [2, 8]")));
}

TEST(ImportOnnx, ConvolutionsAndPools) {
  GraphText g{
      .nodes = {node("Conv", {"x", "w", "b"}, {"c"},
                     {attr("pads", Dims{1, 1, 1, 1}), attr("strides", Dims{2, 2})}, "plain"),
                node("Conv", {"c", "d"}, {"e"},
                     {attr("group", std::int64_t{8}), attr("auto_pad", "SAME_UPPER")}, "depthwise"),
                node("BatchNormalization", {"e", "s", "t", "m", "v"}, {"n"}, {}, "bn"),
                node("AveragePool", {"n"}, {"p"},
                     {attr("kernel_shape", Dims{2, 2}), attr("strides", Dims{2, 2})}, "pool"),
                node("GlobalAveragePool", {"p"}, {"q"}, {}, "gap"),
                node("Flatten", {"q"}, {"y"}, {}, "flat")},
      .initializers = {weight("w", {8, 3, 3, 3}), weight("b", {8}), weight("d", {8, 1, 3, 3}),
                       weight("s", {8}), weight("t", {8}), weight("m", {8}), weight("v", {8})},
      .inputs = {value("x", {"N", "3", "32", "32"})},
      .outputs = {value("y", {"N", "8"})},
      .values = {}};
  const Model model = import(g, sized(4, 0));
  const std::string graph = text(model);
  EXPECT_THAT(graph, HasSubstr("op plain = conv2d(x, w, b) {padding=[1, 1], stride=[2, 2]} -> "
                               "bf16[batch=4, channels=8, height=16, width=16]"));
  EXPECT_THAT(graph, HasSubstr("op depthwise = conv(plain, d) {dilation=[1, 1], groups=8, "
                               "padding=[1, 1, 1, 1], stride=[1, 1]}"));
  EXPECT_THAT(
      graph,
      HasSubstr(
          "op flat = reshape(gap) {pattern=\"a0 a1 1 1 -> a0 a1\"} -> bf16[batch=4, channels=8]"));
  // Running statistics are not trained.
  EXPECT_THAT(graph, AllOf(HasSubstr("param s bf16[channels=8]"), HasSubstr("buffer m bf16[")));
  EXPECT_EQ(parameter_count(model.graph), 8 * 27 + 8 + 8 * 9 + 16);
}

TEST(ImportOnnx, OldBroadcastsAndSoftmaxes) {
  GraphText g{
      .nodes = {node("Add", {"x", "b"}, {"s"},
                     {attr("broadcast", std::int64_t{1}), attr("axis", std::int64_t{1})}, "sum"),
                node("Softmax", {"s"}, {"y"}, {}, "soft")},
      .initializers = {weight("b", {3})},
      .inputs = {value("x", {"N", "3", "4", "5"})},
      .outputs = {value("y", {"N", "3", "4", "5"})},
      .values = {}};
  const std::string graph = text(import(g, sized(2, 0), 6));
  EXPECT_THAT(graph, HasSubstr("reshape(b) {pattern=\"a0 -> a0 1 1\"}"));
  // Before opset 13 a softmax ran over everything from its axis on.
  EXPECT_THAT(graph, HasSubstr("op soft = over_dims(sum_2) {dims=[1, 2, 3], fn=\"softmax\"}"));
}

TEST(ImportOnnx, TiedEmbeddingsStayOneParameter) {
  GraphText g{.nodes = {node("Gather", {"e", "ids"}, {"h"}, {}, "embed"),
                        node("Transpose", {"e"}, {"et"}, {attr("perm", Dims{1, 0})}),
                        node("MatMul", {"h", "et"}, {"l"}, {}, "head"),
                        node("Transpose", {"l"}, {"lt"}, {attr("perm", Dims{0, 2, 1})}),
                        node("SoftmaxCrossEntropyLoss", {"lt", "labels"}, {"loss"}, {}, "loss")},
              .initializers = {weight("e", {100, 8})},
              .inputs = {value("ids", {"batch", "seq"}, 7), value("labels", {"batch", "seq"}, 7)},
              .outputs = {value("loss", {})},
              .values = {}};
  const Model model = import(g, sized(2, 6));
  EXPECT_EQ(parameter_count(model.graph), 800);
  EXPECT_THAT(text(model),
              HasSubstr("op head = linear(embed, e) -> bf16[batch=2, seq=6, vocab=100]"));
  EXPECT_THAT(text(model), HasSubstr("-> f32[batch=2, seq=6]"));
}

TEST(ImportOnnx, FunctionsAreInlined) {
  GraphText g = mlp();
  g.nodes = {node("Twice", {"x"}, {"y"}, {attr("how", std::int64_t{1})}, "call", "own")};
  const std::string axis = field(1, "axis") + field(20, 2) + field(21, "how");
  const std::string twice =
      function("own", "Twice", {"in"}, {"out"},
               {node("Relu", {"in"}, {"h"}), node("Concat", {"h", "h"}, {"out"}, {axis}, "both")});
  g.outputs = {value("y", {"batch", "16"})};
  const Model model = import_model(g.model() + field(25, twice), "m.onnx", {});
  EXPECT_THAT(
      text(model),
      HasSubstr(
          "op call.both = concat(call.Relu, call.Relu) {dim=1} -> bf16[batch=1, features=16]"));
  // A function that calls itself has no end.
  const std::string endless =
      function("own", "Twice", {"in"}, {"out"}, {node("Twice", {"in"}, {"out"}, {}, "", "own")});
  EXPECT_THROW(import_model(g.model() + field(25, endless), "m.onnx", {}), Error);
  const std::string doubling = function(
      "own", "Twice", {"in"}, {"out"},
      {node("Twice", {"in"}, {"h"}, {}, "", "own"), node("Twice", {"h"}, {"out"}, {}, "", "own")});
  EXPECT_THROW(import_model(g.model() + field(25, doubling), "m.onnx", {}), Error);
}

TEST(ImportOnnx, EinsumsAndWholeAttentions) {
  GraphText g{.nodes = {node("Einsum", {"x", "w"}, {"h"}, {attr("equation", "bsh, hnd -> bnsd")},
                             "project"),
                        node("Attention", {"h", "h", "h"}, {"y"},
                             {attr("is_causal", std::int64_t{1})}, "attend")},
              .initializers = {weight("w", {8, 2, 4})},
              .inputs = {value("x", {"batch", "seq", "8"})},
              .outputs = {value("y", {"batch", "2", "seq", "4"})},
              .values = {}};
  const std::string graph = text(import(g, sized(3, 6), 23));
  EXPECT_THAT(graph, HasSubstr("= matmul("));
  EXPECT_THAT(graph,
              HasSubstr("attention(attend, attend_2, attend_3) {causal=true, kernel=\"flash\"}"));
  EXPECT_THAT(graph, Not(HasSubstr("opaque")));
}

TEST(ImportOnnx, ProductsOfActivationsDoNotSplitOneAxisTwice) {
  GraphText g{.nodes = {node("Transpose", {"x"}, {"t"}, {attr("perm", Dims{0, 2, 1})}),
                        node("MatMul", {"x", "t"}, {"y"}, {}, "scores")},
              .initializers = {},
              .inputs = {value("x", {"batch", "seq", "8"})},
              .outputs = {value("y", {"", "", ""})},
              .values = {}};
  EXPECT_THAT(text(import(g, sized(2, 6))), HasSubstr("bf16[batch=2, seq=6, seq_2=6]"));
}

// What a name promises, it computes: variants have names of their own.
TEST(ImportOnnx, VariantsHaveNamesOfTheirOwn) {
  const auto graph = [](const std::string& n, const std::vector<std::string>& initializers = {}) {
    return text(
        import({.nodes = {n},
                .initializers = initializers,
                .inputs = {value("x", {"batch", "6", "8"}), value("z", {"batch", "6", "8"})},
                .outputs = {value("y", {"batch", "6", "8"})},
                .values = {}}));
  };
  const std::string axis = int_tensor("a", {}, {1});
  const auto one = std::int64_t{1};
  EXPECT_THAT(graph(node("CumSum", {"x", "a"}, {"y"}), {axis}), HasSubstr("fn=\"cumsum\""));
  EXPECT_THAT(graph(node("CumSum", {"x", "a"}, {"y"}, {attr("reverse", one)}), {axis}),
              HasSubstr("fn=\"reverse_cumsum\""));
  EXPECT_THAT(
      graph(node("CumSum", {"x", "a"}, {"y"}, {attr("reverse", one), attr("exclusive", one)}),
            {axis}),
      HasSubstr("fn=\"reverse_exclusive_cumsum\""));
  EXPECT_THAT(graph(node("Mod", {"x", "z"}, {"y"}, {attr("fmod", one)})), HasSubstr("\"fmod\""));

  const auto padded = [](const std::string& mode, const std::string& fill) {
    Names inputs = {"x", "p"};
    std::vector<std::string> initializers = {int_tensor("p", {6}, {0, 1, 0, 0, 2, 0})};
    if (!fill.empty()) inputs.push_back("v"), initializers.push_back(fill);
    return text(import({.nodes = {node("Pad", inputs, {"y"}, {attr("mode", mode)})},
                        .initializers = initializers,
                        .inputs = {value("x", {"batch", "6", "8"})},
                        .outputs = {value("y", {"batch", "9", "8"})},
                        .values = {}}));
  };
  const char* zeros = "= pad(x) {after=2, before=1, dim=1}";
  EXPECT_THAT(padded("constant", ""), HasSubstr(zeros));
  EXPECT_THAT(padded("constant", float_tensor("v", {}, {0.0f})), HasSubstr(zeros));
  EXPECT_THAT(padded("constant", float_tensor("v", {}, {2.0f})), HasSubstr("\"constant_pad\""));
  EXPECT_THAT(padded("reflect", ""), HasSubstr("fn=\"reflect_pad\", sizes=[9]"));
  EXPECT_THAT(padded("dream", ""), HasSubstr("opaque("));
}

}  // namespace
}  // namespace meshwright::onnx
