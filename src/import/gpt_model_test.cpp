#include <gmock/gmock.h>

#include "base/error.h"
#include "import/import.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

std::string error_of(const GptSizes& sizes, const ImportOptions& options = {}) {
  try {
    gpt_model(sizes, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

double parameters(const GptSizes& sizes, std::int64_t seq = 2048) {
  ImportOptions options;
  options.seq = seq;
  return parameter_count(gpt_model(sizes, options).graph);
}

TEST(GptModel, MatchesNamedModelsOfTheSameSizes) {
  for (const auto& [name, layers, hidden, heads] :
       {std::tuple{"megatron-gpt-1.7b", 24, 2304, 24}, {"megatron-gpt-145b", 80, 12288, 96}}) {
    EXPECT_EQ(parameters({.layers = layers, .hidden = hidden, .heads = heads}),
              parameter_count(import_model(name, {}).graph))
        << name;
  }
  EXPECT_EQ(parameters({.layers = 12, .hidden = 768, .heads = 12, .vocab = 50257}, 1024),
            124'439'808);
  // Llama 2 7B: an untied head, and 11008 is 8/3 of 4096 rounded up to 256.
  EXPECT_EQ(parameters({.layers = 32,
                        .hidden = 4096,
                        .heads = 32,
                        .vocab = 32000,
                        .gated = true,
                        .tied = false}),
            6'738'415'616);
  EXPECT_EQ(parameters({.layers = 80,
                        .hidden = 8192,
                        .heads = 64,
                        .kv_heads = 8,
                        .ffn = 28672,
                        .vocab = 128256,
                        .gated = true,
                        .tied = false}),
            70'553'706'496);
  EXPECT_EQ(parameters({.layers = 32,
                        .hidden = 4096,
                        .heads = 32,
                        .kv_heads = 8,
                        .vocab = 32000,
                        .experts = 8,
                        .top_k = 2,
                        .expert_ffn = 14336,
                        .gated = true,
                        .tied = false}),
            46'702'792'704);
}

TEST(GptModel, SequenceAndPositions) {
  const GptSizes small{.layers = 2, .hidden = 64, .heads = 4};
  EXPECT_EQ(gpt_model(small, {}).seq, 2048);
  GptSizes rows = small;
  rows.max_positions = 512;
  EXPECT_EQ(gpt_model(rows, {}).seq, 512);
  EXPECT_EQ(parameters(small, 256), parameters(small, 128) + 128 * 64);
  ImportOptions options;
  options.seq = 1024;
  EXPECT_EQ(error_of(rows, options), "--max-positions: must be at least --seq = 1024, but is 512");
  rows.gated = true;  // Rotary positions have no table.
  EXPECT_EQ(gpt_model(rows, options).seq, 1024);
}

TEST(GptModel, WrongSizesAreRefused) {
  const GptSizes good{.layers = 4, .hidden = 3584, .heads = 28};
  const auto error = [&](auto change) {
    GptSizes sizes = good;
    change(sizes);
    return error_of(sizes);
  };
  EXPECT_EQ(error([](GptSizes&) {}), "no error");
  EXPECT_EQ(error([](GptSizes& s) { s.layers = 0; }), "--layers: is missing (a GPT needs it)");
  EXPECT_THAT(error([](GptSizes& s) { s.layers = 20'000; }), HasSubstr("--layers: must be from 1"));
  EXPECT_THAT(error([](GptSizes& s) { s.hidden = -1; }), HasSubstr("--hidden: must be from 1"));
  EXPECT_THAT(error([](GptSizes& s) { s.hidden = 1'000'000'000'000; }), HasSubstr("--hidden"));
  EXPECT_THAT(error([](GptSizes& s) { s.heads = 30; }),
              HasSubstr("--heads: must divide --hidden = 3584, but is 30 (legal: 1, 2, 4, 7, 8,"));
  EXPECT_EQ(error([](GptSizes& s) { s.kv_heads = 8; }),
            "--kv-heads: must divide --heads = 28, but is 8 (legal: 1, 2, 4, 7, 14, 28)");
  EXPECT_THAT(error([](GptSizes& s) { s.top_k = 2; }), HasSubstr("--experts: is missing"));
  EXPECT_EQ(error([](GptSizes& s) {
              s.experts = 4;
              s.top_k = 5;
            }),
            "--top-k: must be at most --experts = 4, but is 5");
  EXPECT_THAT(error([](GptSizes& s) { s.vocab = -7; }), HasSubstr("--vocab"));
  // The largest sizes that each pass on their own are still too much together.
  EXPECT_NE(error([](GptSizes& s) {
              s.hidden = s.ffn = s.vocab = std::int64_t{1} << 31;
              s.heads = 1;
            }),
            "no error");
}

}  // namespace
}  // namespace meshwright
