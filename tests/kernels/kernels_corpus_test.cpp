// Operators of real networks: every one that has a kernel runs, whole, forward and backward.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "engine/split_kernel.h"
#include "import/import.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;

constexpr double kMaxElements = 2e6;

std::vector<fs::path> models() {
  std::vector<fs::path> files;
  const fs::path root = fs::path(MESHWRIGHT_REFERENCE_DATA) / "real" / "onnx";
  if (!fs::exists(root)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

double elements(const Graph& graph) {
  double total = 0;
  for (const Value& value : graph.values) total += value.type.elements();
  return total;
}

// Of an operator: what decides its kernel, but for the names of dims.
std::string signature(const Graph& graph, const Op& op) {
  std::string text = op.kind;
  for (const auto& [name, attr] : op.attrs) text += fmt::format(" {}={}", name, attr.index());
  for (const auto& [name, attr] : op.attrs) {
    if (const auto* s = std::get_if<std::string>(&attr)) text += " " + *s;
    if (const auto* i = std::get_if<std::int64_t>(&attr)) text += fmt::format(" {}", *i);
    if (const auto* l = std::get_if<std::vector<std::int64_t>>(&attr)) {
      text += fmt::format(" [{}]", fmt::join(*l, ","));
    }
  }
  for (const ValueId id : op.inputs) text += " " + to_string(graph.value(id).type);
  return text;
}

TEST(KernelCorpus, OperatorsOfRealNetworksRun) {
  const std::vector<fs::path> files = models();
  if (files.empty()) {
    GTEST_SKIP() << "no models under " << MESHWRIGHT_REFERENCE_DATA << "/real/onnx";
  }
  std::set<std::string> seen;
  std::map<std::string, int> refused;
  int graphs = 0, whole = 0, operators = 0, ran = 0, without = 0;
  for (const fs::path& path : files) {
    Graph graph;
    try {
      ImportOptions options;
      options.global_batch = 2;
      graph = import_model(path.string(), options).graph;
    } catch (const Error&) {
      continue;
    }
    if (elements(graph) > kMaxElements) continue;
    ++graphs;
    bool runs = true;
    for (const Op& op : graph.ops) {
      ++operators;
      const OpDef& def = find_op(op.kind);
      OpDef::Example example{op.attrs, {}};
      for (const ValueId id : op.inputs) example.inputs.push_back(graph.value(id).type);
      const std::string fn = attr_string(op.attrs, "fn", "");
      try {
        KernelCase c = draw_case(def, example);
        // Integers are not divided by zero.
        if (fn == "div" || fn == "fmod" || fn == "remainder") c.operands.at(1).fill_(1);
        if (!seen.insert(signature(graph, op)).second && runs) continue;
        run_whole(c);
        ++ran;
      } catch (const Error& e) {
        ++without;
        runs = false;
        ++refused[e.message()];
      } catch (const std::exception& e) {
        ADD_FAILURE() << path.filename() << ", " << op.name << ", " << signature(graph, op) << ": "
                      << e.what();
      }
    }
    whole += runs ? 1 : 0;
  }
  for (const auto& [message, count] : refused) fmt::print("{:6} {}\n", count, message);
  fmt::print("{} operators of {} graphs, {} different ones ran, {} have no kernel; {} graphs run\n",
             operators, graphs, ran, without, whole);
  EXPECT_GT(ran, 100);
}

}  // namespace
}  // namespace meshwright
