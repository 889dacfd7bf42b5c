#include "run/feeds.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "models/test_models.h"

namespace meshwright {
namespace {

ValueId named(const Graph& graph, std::string_view part, ValueKind kind) {
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind == kind && graph.values[v].name.find(part) != std::string::npos) {
      return ValueId(static_cast<std::int64_t>(v));
    }
  }
  throw InternalError("no such value");
}

Box whole(const TensorType& type) {
  Box box;
  for (const Dim& d : type.dims) box.push_back({0, d.size});
  return box;
}

Graph small_model() {
  TestModelSizes sizes;
  sizes.batch = 4;
  sizes.seq = 8;
  sizes.vocab = 50;
  sizes.layers = 1;
  return test_model(sizes);
}

TEST(Draw, BitsDependOnKeyAndIndexAndAreEven) {
  double sum = 0, square = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double u = draw_uniform(draw_key(7, "w"), static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    square += u * u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(square / kCount, 1.0 / 3, 0.005);
  EXPECT_NE(draw_bits(1, 0), draw_bits(2, 0));
  EXPECT_NE(draw_bits(1, 0), draw_bits(1, 1));
  EXPECT_NE(draw_key(1, "ab"), draw_key(1, "ba"));
}

TEST(Feeds, PartsAgreeWithTheWhole) {
  const Graph graph = small_model();
  const Feeds feeds(graph, 3, 4);
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kActivation || !is_floating(value.type.dtype)) continue;
    const ValueId id(static_cast<std::int64_t>(v));
    const Box all = whole(value.type);
    std::vector<double> full(static_cast<std::size_t>(value.type.elements()));
    feeds.fill(id, value.type, all, 0, 0, std::span<double>(full));
    // The second half of the first dim.
    Box half = all;
    half[0].begin = half[0].end / 2;
    const std::size_t skip = full.size() / static_cast<std::size_t>(all[0].end) *
                             static_cast<std::size_t>(half[0].begin);
    std::vector<double> part(full.size() - skip);
    feeds.fill(id, value.type, half, 0, 0, std::span<double>(part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), full.begin() + static_cast<long>(skip)))
        << value.name;
  }
}

// A sample has the same tokens whatever micro-batch it is in.
TEST(Feeds, SamplesAreCountedOverTheGlobalBatch) {
  const Graph graph = small_model();
  const Feeds feeds(graph, 3, 4);
  const ValueId id = named(graph, "", ValueKind::kInput);
  TensorType type = graph.value(id).type;
  std::vector<std::int64_t> all(static_cast<std::size_t>(type.elements()));
  feeds.fill(id, type, whole(type), 5, 0, std::span<std::int64_t>(all));
  EXPECT_THAT(all, testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(50))));
  type.dims[0].size = 2;  // Micro-batches of two samples.
  std::vector<std::int64_t> second(all.size() / 2);
  feeds.fill(id, type, whole(type), 5, 2, std::span<std::int64_t>(second));
  EXPECT_TRUE(
      std::equal(second.begin(), second.end(), all.begin() + static_cast<long>(second.size())));
  std::vector<std::int64_t> next(second.size());
  feeds.fill(id, type, whole(type), 6, 2, std::span<std::int64_t>(next));
  EXPECT_NE(next, second);  // Another step, other data.
}

TEST(Feeds, LossWeightsSumToOneOverTheGlobalBatch) {
  const Graph graph = small_model();
  const Feeds feeds(graph, 3, 4);
  const ValueId loss = graph.ops.back().outputs[0];
  TensorType type = graph.value(loss).type;
  type.dims[0].size = 1;
  double sum = 0;
  for (std::int64_t sample = 0; sample < 4; ++sample) {
    std::vector<double> weights(static_cast<std::size_t>(type.elements()));
    feeds.fill_loss_weights(loss, type, whole(type), sample, weights);
    for (double w : weights) sum += w;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(Feeds, TokensOfAFileFollowEachOther) {
  const std::string path = testing::TempDir() + "/tokens.u16";
  {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 40; ++i) file.put(static_cast<char>(i)), file.put(0);
  }
  const Graph graph = small_model();
  const auto tokens = std::make_shared<TokenFile>(read_token_file(path));
  ASSERT_EQ(tokens->tokens.size(), 40u);
  const Feeds feeds(graph, 3, 4, tokens);
  const ValueId ids = graph.ops[0].inputs[0];
  const ValueId labels = graph.ops.back().inputs[1];
  const TensorType& type = graph.value(ids).type;
  std::vector<std::int64_t> in(32), next(32);
  feeds.fill(ids, type, whole(type), 0, 0, std::span<std::int64_t>(in));
  feeds.fill(labels, type, whole(type), 0, 0, std::span<std::int64_t>(next));
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(in[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(next[static_cast<std::size_t>(i)], i + 1);
  }
}

TEST(Feeds, FilesThatDoNotFitAreRefused) {
  const Graph graph = small_model();
  const auto make = [&](std::vector<std::int32_t> tokens) {
    Feeds(graph, 1, 4, std::make_shared<TokenFile>(TokenFile{"data.u16", std::move(tokens)}));
  };
  const auto message = [&](std::vector<std::int32_t> tokens) -> std::string {
    try {
      make(std::move(tokens));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  std::vector<std::int32_t> beyond(20, 1);
  beyond[7] = 50;
  EXPECT_THAT(message(beyond), testing::HasSubstr("token 50 at position 7"));
  EXPECT_THAT(message({1, 2, 3}), testing::HasSubstr("one sample takes 9"));
  EXPECT_EQ(message(std::vector<std::int32_t>(9, 1)), "");
}

}  // namespace
}  // namespace meshwright
