#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "ir/graph.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

constexpr std::string_view kExample = R"(graph 1 mlp
input x bf16[batch=8, hidden=16]
param up.weight bf16[heads=64/16, hidden=16]
op up = linear(x, up.weight) -> bf16[batch=8, heads=64/16]
op act = gelu(up) {approximate=true, p=0.5, dims=[1, -2], note="a \"b\""} -> bf16[batch=8, heads=64/16]
op pair = two(act) -> pair:0 f32[], pair:1 i64[one=1]
)";

std::string error_of(std::string text) {
  try {
    parse_graph(text, "g");
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

// The example with one piece replaced.
std::string broken(std::string_view piece, std::string_view by) {
  std::string text(kExample);
  const std::size_t at = text.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return error_of(text.replace(at, piece.size(), by));
}

TEST(GraphText, ReadsAndPrintsTheExample) {
  const Graph graph = parse_graph(kExample, "example");
  EXPECT_EQ(graph.name, "mlp");
  ASSERT_EQ(graph.values.size(), 6u);
  EXPECT_EQ(graph.values[1].type.dims[0].unit, 16);
  EXPECT_EQ(graph.values[3].name, "act");
  EXPECT_EQ(graph.values[3].producer, OpId(1));
  EXPECT_EQ(graph.values[5].name, "pair:1");
  EXPECT_EQ(std::get<std::string>(graph.ops[1].attrs.at("note")), "a \"b\"");
  EXPECT_EQ(std::get<double>(graph.ops[1].attrs.at("p")), 0.5);
  // Attributes are printed by name.
  const std::string printed = print_graph(graph);
  EXPECT_THAT(printed, HasSubstr("{approximate=true, dims=[1, -2], note=\"a \\\"b\\\"\", p=0.5}"));
  EXPECT_EQ(parse_graph(printed, "printed"), graph);
}

TEST(GraphText, CommentsAndBlankLines) {
  const Graph graph = parse_graph("# a model\n\n  graph 1 \"two words\" # name\r\n\t\n", "g");
  EXPECT_EQ(graph.name, "two words");
  EXPECT_TRUE(graph.values.empty());
}

TEST(GraphText, ErrorsGiveThePlace) {
  EXPECT_THAT(error_of(""), HasSubstr("g:1:1: graph text is empty"));
  EXPECT_THAT(error_of("grap 1 x"), HasSubstr("g:1:1: expected 'graph 1 NAME'"));
  EXPECT_THAT(error_of("graph 2 x"), HasSubstr("g:1:7: unknown version 2 of the graph format"));
  EXPECT_THAT(broken("input x", "inptu x"), HasSubstr("g:2:1: expected input, param"));
  EXPECT_THAT(broken("batch=8", "batch=0"), HasSubstr("g:2:9: dimension 'batch' must be between"));
  EXPECT_THAT(broken("batch=8", "batch=x"), HasSubstr("g:2:20: expected a size"));
  EXPECT_THAT(broken("batch=8", "batch=99999999999999999999"), HasSubstr("expected a size"));
  EXPECT_THAT(broken("64/16", "64/17"), HasSubstr("not a multiple of its unit 17"));
  EXPECT_THAT(broken("bf16[", "bf17["), HasSubstr("g:2:9: unknown dtype 'bf17'"));
  EXPECT_THAT(broken("(x, ", "(y, "), HasSubstr("g:4:16: unknown value 'y'"));
  EXPECT_THAT(broken("gelu(up)", "gelu(up"), HasSubstr("g:5:18: expected ')', not '{'"));
  EXPECT_THAT(broken("op act", "op up"), HasSubstr("g:5:4: two operators are named 'up'"));
  EXPECT_THAT(broken("param up.weight", "param x"), HasSubstr("g:3:7: two values are named 'x'"));
  EXPECT_THAT(broken("p=0.5", "p=1e999"), HasSubstr("expected true, false, a number"));
  EXPECT_THAT(broken("p=0.5", "p=nan"), HasSubstr("expected true, false, a number"));
  EXPECT_THAT(broken("p=0.5", "dims=1"), HasSubstr("attribute 'dims' is given twice"));
  EXPECT_THAT(broken("\"a \\\"", "\"a \\q"), HasSubstr("unknown escape"));
  EXPECT_THAT(broken("\"a \\\"b\\\"\"", "\"a"), HasSubstr("missing closing '\"'"));
  EXPECT_THAT(broken("-> pair:0 f32[]", "-> pair:0"), HasSubstr("result 'pair:0' has no type"));
  EXPECT_THAT(broken("i64[one=1]", "i64[one=1] x"), HasSubstr("unexpected 'x'"));
}

TEST(GraphText, DeclaredValuesAreComputedOnceAndBeforeUse) {
  const std::string head = "graph 1 g\ninput x f32[]\nvalue y f32[]\n";
  EXPECT_EQ(error_of(head + "op a = f(x) -> y\n"), "none");
  EXPECT_THAT(error_of(head), HasSubstr("g:3:1: no operator computes value 'y'"));
  EXPECT_THAT(error_of(head + "op a = f(y) -> y\n"), HasSubstr("'y' is used before it is"));
  EXPECT_THAT(error_of(head + "op a = f(x) -> y\nop b = f(x) -> y\n"),
              HasSubstr("g:5:16: value 'y' is computed twice"));
  EXPECT_THAT(error_of(head + "op a = f(x) -> x\n"), HasSubstr("'x' is computed twice"));
}

TEST(GraphText, SizesOfHostileTextAreBounded) {
  const std::string head = "graph 1 g\ninput x f32[]\n";
  EXPECT_THAT(error_of(head + std::string(2 << 20, 'a')), HasSubstr("longer than 1 MiB"));
  std::string dims;
  for (int i = 0; i < 9; ++i) dims += i == 0 ? "a=1" : ", a=1";
  EXPECT_THAT(error_of(head + "input y f32[" + dims + "]"), HasSubstr("more than 8 dimensions"));
  std::string operands = "x";
  for (int i = 0; i < 1024; ++i) operands += ", x";
  EXPECT_THAT(error_of(head + "op a = f(" + operands + ")"), HasSubstr("more than 1024 operands"));
  std::string attrs = "k=1";
  for (int i = 0; i < 64; ++i) attrs += ", k" + std::to_string(i) + "=1";
  EXPECT_THAT(error_of(head + "op a = f(x) {" + attrs + "}"), HasSubstr("more than 64 attributes"));
  std::string list = "1";
  for (int i = 0; i < 4096; ++i) list += ", 1";
  EXPECT_THAT(error_of(head + "op a = f(x) {k=[" + list + "]}"), HasSubstr("more than 4096"));
}

// Random graphs: any names, types and attributes, values numbered in any order.
class RandomGraph {
 public:
  explicit RandomGraph(std::uint64_t seed) : random_(seed) {}

  Graph make() {
    Graph graph;
    graph.name = name();
    const int ops = below(6);
    std::vector<std::vector<int>> results;  // Per operator, values not yet numbered.
    std::vector<Value> values;
    for (int i = below(4) + 1; i > 0; --i) {
      values.push_back({unique(), type(), static_cast<ValueKind>(below(3)), OpId()});
    }
    for (int o = 0; o < ops; ++o) {
      results.emplace_back();
      const std::string op_name = unique();
      for (int i = below(3); i > 0; --i) {
        results.back().push_back(static_cast<int>(values.size()));
        values.push_back({i == 1 && below(2) == 0 ? op_name : unique(), type(),
                          ValueKind::kActivation, OpId(o)});
      }
      graph.ops.push_back({name(), op_name, attrs(), {}, {}});
    }
    std::vector<int> id(values.size());
    for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<int>(i);
    if (below(2) == 0) std::ranges::shuffle(id, random_);
    graph.values.resize(values.size());
    for (std::size_t i = 0; i < id.size(); ++i) graph.values[id[i]] = values[i];
    std::vector<ValueId> defined;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].kind != ValueKind::kActivation) defined.emplace_back(id[i]);
    }
    for (int o = 0; o < ops; ++o) {
      Op& op = graph.ops[o];
      for (int i = below(4); i > 0; --i) {
        op.inputs.push_back(defined[below(static_cast<int>(defined.size()))]);
      }
      for (const int r : results[o]) {
        op.outputs.emplace_back(id[r]);
        defined.emplace_back(id[r]);
      }
    }
    return graph;
  }

 private:
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  std::string name() {
    static const std::string kLetters = "ab7_.:/-> \"\\#,=[]{}()\n\t\x7f\xc3\xa9";
    std::string text;
    for (int i = below(6); i > 0; --i) text += kLetters[below(static_cast<int>(kLetters.size()))];
    return text;
  }
  std::string unique() { return name() + std::to_string(count_++); }

  TensorType type() {
    TensorType type{static_cast<DType>(below(9)), {}};
    for (int i = below(4); i > 0; --i) {
      const std::int64_t unit = below(3) + 1;
      type.dims.push_back({name(), unit * (below(1000) + 1), unit});
    }
    return type;
  }

  Attrs attrs() {
    Attrs attrs;
    for (int i = below(4); i > 0; --i) attrs[name()] = attr();
    return attrs;
  }
  Attr attr() {
    auto wide = std::uniform_int_distribution<std::int64_t>(
        std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
    switch (below(6)) {
      case 0:
        return below(2) == 0;
      case 1:
        return wide(random_);
      case 2:
        return static_cast<double>(below(100) - 50);
      case 3:
        return std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random_),
                          below(2000) - 1000);
      case 4:
        return name();
      default:
        return std::vector<std::int64_t>(static_cast<std::size_t>(below(3)), wide(random_));
    }
  }

  std::mt19937_64 random_;
  int count_ = 0;
};

TEST(GraphText, EveryGraphSurvivesPrinting) {
  ::setenv("RC_PARAMS", "seed=7 max_success=2000", 0);
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const Graph graph = RandomGraph(seed).make();
    check_graph(graph);
    RC_ASSERT(parse_graph(print_graph(graph), "printed") == graph);
  }));
}

}  // namespace
}  // namespace meshwright
