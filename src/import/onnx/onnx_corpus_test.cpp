// Every model of the reference data gives a graph or an Error that names an operator.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "import/onnx/infer.h"
#include "import/onnx/mapped_file.h"
#include "import/onnx/onnx.h"
#include "ops/check_ops.h"

namespace meshwright::onnx {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> corpus() {
  std::vector<fs::path> files;
  const fs::path root = fs::path(MESHWRIGHT_REFERENCE_DATA) / "real" / "onnx";
  if (!fs::exists(root)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// "file: value": shapes that a file states and its own nodes contradict. In each case the
// operator's definition leaves no choice: reducing all dimensions without keeping them gives a
// scalar, a slice from 0 to 12 in steps of -1 is empty, [2, 2] indices into rows of 3 give [2, 2,
// 3].
const std::set<std::string>& misstated() {
  static const std::set<std::string> kMisstated = {
      "crates__onnx-ir__tests__fixtures__high_rank_tensors.onnx: output",
      "crates__onnx-ir__tests__fixtures__unknown_rank_dynamic.onnx: output",
      "gather__gather_2d_idx.onnx: output1",
      "reduce__reduce_l1.onnx: output1",
      "reduce__reduce_l1.onnx: output5",
      "reduce__reduce_log_sum.onnx: output1",
      "reduce__reduce_log_sum.onnx: output5",
      "reduce__reduce_log_sum_exp.onnx: output1",
      "reduce__reduce_log_sum_exp.onnx: output5",
      "reduce__reduce_sum_square.onnx: output1",
      "reduce__reduce_sum_square.onnx: output5",
      "reshape__reshape_scalar_to_scalar.onnx: output",
      "slice__slice_with_steps.onnx: output",
  };
  return kMisstated;
}

TEST(OnnxCorpus, ImportsOrNamesTheOperator) {
  const std::vector<fs::path> files = corpus();
  if (files.empty())
    GTEST_SKIP() << "no models under " << MESHWRIGHT_REFERENCE_DATA << "/real/onnx";
  std::size_t imported = 0;
  for (const fs::path& path : files) {
    const std::string name = path.filename().string();
    const auto start = std::chrono::steady_clock::now();
    try {
      const MappedFile file(path);
      const Model model = import_model(file.bytes(), name, {});
      check_graph(model.graph);
      check_ops(model.graph);
      EXPECT_EQ(parse_graph(print_graph(model.graph), name), model.graph) << name;
      ++imported;
    } catch (const Error& e) {
      fmt::print("refused: {}\n", e.what());
      EXPECT_THAT(e.where(), testing::HasSubstr("node \"")) << name;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 5) << name;
  }
  fmt::print("{} of {} models imported\n", imported, files.size());
  EXPECT_GE(imported * 10, files.size() * 9);
}

TEST(OnnxCorpus, ShapesAreThoseStated) {
  const std::vector<fs::path> files = corpus();
  if (files.empty())
    GTEST_SKIP() << "no models under " << MESHWRIGHT_REFERENCE_DATA << "/real/onnx";
  std::size_t compared = 0;
  std::set<std::string> differ;
  for (const fs::path& path : files) {
    const MappedFile file(path);
    try {
      const Inferred inferred = infer(decode_model(file.bytes()), {.batch = 4, .seq = 16});
      for (const auto& [name, dims] : inferred.stated) {
        const auto it = inferred.facts.find(name);
        if (it == inferred.facts.end() || !it->second.tensor) continue;
        ++compared;
        if (it->second.dims != dims) differ.insert(path.filename().string() + ": " + name);
      }
    } catch (const Error&) {
      continue;
    }
  }
  fmt::print("{} stated shapes compared\n", compared);
  EXPECT_GT(compared, 500u);
  EXPECT_EQ(differ, misstated());
}

// The figures usually quoted for these networks.
TEST(OnnxCorpus, KnownNetworksHaveTheirParameters) {
  const fs::path light = fs::path(MESHWRIGHT_REFERENCE_DATA) / "real" / "onnx" / "light";
  if (!fs::exists(light)) GTEST_SKIP() << "no models under " << light;
  const std::pair<const char*, double> networks[] = {{"light_resnet50.onnx", 25'557'032},
                                                     {"light_vgg19.onnx", 143'667'240},
                                                     {"light_squeezenet.onnx", 1'235'496}};
  for (const auto& [name, parameters] : networks) {
    const MappedFile file(light / name);
    ImportOptions options;
    options.global_batch = 32;
    const Model model = import_model(file.bytes(), name, options);
    EXPECT_EQ(parameter_count(model.graph), parameters) << name;
    EXPECT_EQ(model.global_batch, 32) << name;
  }
}

// Cut anywhere, a model is refused and nothing worse.
TEST(OnnxCorpus, CutFilesAreErrors) {
  const std::vector<fs::path> files = corpus();
  if (files.empty())
    GTEST_SKIP() << "no models under " << MESHWRIGHT_REFERENCE_DATA << "/real/onnx";
  for (std::size_t i = 0; i < files.size(); i += 7) {
    const MappedFile file(files[i]);
    for (std::size_t parts = 1; parts < 8; ++parts) {
      const std::string_view cut = file.bytes().substr(0, file.bytes().size() * parts / 8);
      try {
        import_model(cut, "cut", {});
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace meshwright::onnx
