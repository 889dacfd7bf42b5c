#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "import/onnx/model_writer.h"
#include "import/onnx/onnx.h"
#include "import/onnx/proto.h"

namespace meshwright::onnx {
namespace {

using namespace onnx::testing;  // NOLINT: the writer's short names.
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& bytes, const ImportOptions& options = {}) {
  try {
    import_model(bytes, "m.onnx", options);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

GraphText relu() {
  return {.nodes = {node("Relu", {"x"}, {"y"})},
          .initializers = {},
          .inputs = {value("x", {"batch", "8"})},
          .outputs = {value("y", {"batch", "8"})},
          .values = {}};
}

TEST(HostileOnnx, ASmallModelIsAccepted) { EXPECT_EQ(refusal(relu().model()), "accepted"); }

TEST(HostileOnnx, Cycles) {
  GraphText g = relu();
  g.nodes = {node("Add", {"x", "b"}, {"a"}, {}, "first"), node("Relu", {"a"}, {"b"}, {}, "second"),
             node("Relu", {"b"}, {"y"})};
  EXPECT_THAT(refusal(g.model()),
              AllOf(HasSubstr("the nodes form a cycle"), HasSubstr("\"first\" (Add)")));
  g.nodes = {node("Relu", {"y"}, {"y"})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("the nodes form a cycle"));
}

TEST(HostileOnnx, DanglingNames) {
  GraphText g = relu();
  g.nodes = {node("Add", {"x", "nowhere"}, {"y"}, {}, "sum")};
  EXPECT_THAT(refusal(g.model()), AllOf(HasSubstr("operand \"nowhere\" is computed by no node"),
                                        HasSubstr("\"sum\" (Add)")));
  g = relu();
  g.outputs = {value("z", {"8"})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("output \"z\" is computed by no node"));
  g = relu();
  g.nodes.push_back(node("Relu", {"x"}, {"y"}));
  EXPECT_THAT(refusal(g.model()), HasSubstr("value \"y\" is computed twice"));
}

TEST(HostileOnnx, NegativeSizes) {
  GraphText g = relu();
  g.inputs = {value("x", {"batch", "-7"})};
  EXPECT_THAT(refusal(g.model()), AllOf(HasSubstr("size -7"), HasSubstr("input \"x\"")));
  g = relu();
  g.initializers = {weight("w", {4, -1})};
  EXPECT_THAT(refusal(g.model()), AllOf(HasSubstr("size -1"), HasSubstr("tensor \"w\"")));
  g = relu();
  g.inputs = {value("x", {"batch", "9000000000000000000"})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("a tensor of shape"));
  g.inputs = {value("x", {"1000000000000", "1000000000000"})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("more than 2^53"));
}

TEST(HostileOnnx, ClaimedCounts) {
  // A node list that claims 10^9 bytes and ends.
  const std::string claims = varint(1 << 3 | 2) + varint(1'000'000'000);
  EXPECT_THAT(refusal(field(7, claims)), HasSubstr("claims 1000000000 bytes"));
  // Millions of empty nodes in few bytes.
  std::string many;
  for (int i = 0; i < 4'100'000; ++i) many += field(1, "");
  EXPECT_THAT(refusal(field(7, many)), HasSubstr("more than 4000000 parts"));
  // As many packed dimensions.
  EXPECT_THAT(refusal(field(7, field(5, field(1, std::string(4'100'000, '\1'))))),
              HasSubstr("more than 4000000 parts"));
  EXPECT_THAT(refusal(field(7, field(2, std::string(5000, 'a')))),
              HasSubstr("a name of 5000 bytes"));
}

TEST(HostileOnnx, DeepGraphs) {
  std::string graph;
  for (int i = 0; i < 200; ++i)
    graph = field(1, node("If", {"c"}, {"y"}, {graph_attr("then_branch", graph)}));
  EXPECT_THAT(refusal(field(7, graph)), HasSubstr("graphs nest deeper than 16"));
}

TEST(HostileOnnx, ExternalDataStayInTheFolder) {
  const auto with_location = [](const std::string& path, const std::string& more = {}) {
    GraphText g = relu();
    g.nodes = {node("MatMul", {"x", "w"}, {"y"})};
    g.initializers = {weight("w", {8, 4}) + field(13, field(1, "location") + field(2, path)) +
                      more + field(14, 1)};
    g.outputs = {value("y", {"batch", "4"})};
    return refusal(g.model());
  };
  EXPECT_EQ(with_location("weights.bin"), "accepted");
  EXPECT_EQ(with_location("data/weights..bin"), "accepted");
  for (const char* path :
       {"/etc/passwd", "../w.bin", "a/../../w.bin", "a\\..\\w", "C:\\w", "\\\\host\\w"}) {
    EXPECT_THAT(with_location(path),
                AllOf(HasSubstr("leave the model's folder"), HasSubstr("tensor \"w\"")))
        << path;
  }
  EXPECT_THAT(with_location(""), HasSubstr("no location"));
  EXPECT_THAT(with_location("w", field(13, field(1, "offset") + field(2, "-4"))),
              HasSubstr("no number of bytes"));
  EXPECT_THAT(with_location("w", field(13, field(1, "length") + field(2, "12"))),
              HasSubstr("has 12 bytes of external data, its shape needs 128"));
}

TEST(HostileOnnx, DataThatDoNotFitTheirShape) {
  GraphText g = relu();
  g.initializers = {int_tensor("s", {3}, {1, 2})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("has 2 elements of data, its shape needs 3"));
  g.initializers = {weight("s", {3}) + field(9, "1234567")};
  EXPECT_THAT(refusal(g.model()), HasSubstr("has 7 bytes of data, its shape needs 12"));
}

TEST(HostileOnnx, UnknownOperators) {
  GraphText g = relu();
  g.nodes = {node("Frobnicate", {"x"}, {"h"}, {}, "f", "com.example"), node("Relu", {"h"}, {"y"})};
  EXPECT_THAT(refusal(g.model()), AllOf(HasSubstr("node \"f\" (com.example.Frobnicate)"),
                                        HasSubstr("does not state the shapes")));
  g.values = {value("h", {"batch", "8"})};
  EXPECT_EQ(refusal(g.model()), "accepted");
}

TEST(HostileOnnx, NoModelAtAll) {
  EXPECT_THAT(refusal("\x7f"
                      "ELF and more"),
              HasSubstr("byte "));
  EXPECT_THAT(refusal(field(1, 8)), HasSubstr("the file has no graph"));
  EXPECT_THAT(refusal(relu().model(0)), HasSubstr("opset 0"));
}

TEST(HostileOnnx, ArithmeticOfConstants) {
  GraphText g = relu();
  g.initializers = {int_tensor("s", {}, {INT64_MAX}), int_tensor("z", {}, {0})};
  g.nodes = {node("Mul", {"s", "s"}, {"p"}), node("Reshape", {"x", "p"}, {"y"})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("overflows"));
  g.nodes = {node("Div", {"s", "z"}, {"p"}), node("Reshape", {"x", "p"}, {"y"})};
  EXPECT_THAT(refusal(g.model()), HasSubstr("divided by 0"));
}

}  // namespace
}  // namespace meshwright::onnx
