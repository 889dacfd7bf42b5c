#include "import/hf/config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "import/hf/family.h"

namespace meshwright::hf {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Config, ReadsTheFirstKeyPresent) {
  const Json json = Json::parse(R"({"n_embd": 768, "hidden_size": null, "rope": 1e4, "tie": true,
                                    "act": "gelu", "list": [1, -1, true], "zero": 0})");
  const Config c(json, "config.json");
  EXPECT_EQ(c.size({"hidden_size", "n_embd"}), 768);
  EXPECT_EQ(c.size_or({"absent"}, 7), 7);
  EXPECT_EQ(c.count_or({"zero"}, 5), 0);
  EXPECT_EQ(c.number_or({"rope"}, 0), 10000);
  EXPECT_TRUE(c.flag_or({"tie"}, false));
  EXPECT_EQ(c.text_or({"act"}, ""), "gelu");
  EXPECT_THAT(c.sizes_or_empty("list"), testing::ElementsAre(1, -1, 1));
  EXPECT_FALSE(c.has("hidden_size"));
}

TEST(Config, CoreSizesHaveDefaultsOnlyWithAModelType) {
  const Json named = Json::parse(R"({"model_type": "gpt2"})");
  const Json bare = Json::parse(R"({"architectures": ["GPT2LMHeadModel"]})");
  EXPECT_EQ(Config(named, "c").core_size_or({"n_embd"}, 768), 768);
  EXPECT_THAT(
      error_of([&] { Config(bare, "c").core_size_or({"n_embd", "hidden_size"}, 768); }),
      HasSubstr("c: /n_embd: n_embd is missing (any of these counts: n_embd, hidden_size)"));
}

TEST(Config, ErrorsCarryTheJsonPointer) {
  const Json json = Json::parse(R"({"text_config": {"hidden_size": "4096", "a": -1, "b": 1e12,
      "c": 3000000000, "d": 0, "e": 2.5, "f": 18446744073709551615, "g": [1, "x"], "t": 1}})");
  const Config c = Config(json, "config.json").nested("text_config");
  EXPECT_EQ(error_of([&] { c.size({"hidden_size"}); }),
            "config.json: /text_config/hidden_size: hidden_size must be a whole number from 1 to "
            "2147483648, but is \"4096\"");
  EXPECT_THAT(error_of([&] { c.size({"a"}); }), HasSubstr("but is -1"));
  EXPECT_THAT(error_of([&] { c.size({"b"}); }), HasSubstr("but is 1000000000000.0"));
  EXPECT_THAT(error_of([&] { c.size({"c"}); }), HasSubstr("but is 3000000000"));
  EXPECT_THAT(error_of([&] { c.size({"d"}); }), HasSubstr("but is 0"));
  EXPECT_THAT(error_of([&] { c.size({"e"}); }), HasSubstr("but is 2.5"));
  EXPECT_THAT(error_of([&] { c.size({"f"}); }), HasSubstr("but is 18446744073709551615"));
  EXPECT_THAT(error_of([&] { c.sizes_or_empty("g"); }), HasSubstr("but is \"x\""));
  EXPECT_THAT(error_of([&] { c.text_or({"t"}, ""); }), HasSubstr("t must be a string, but is 1"));
  EXPECT_THAT(error_of([&] { c.flag_or({"t"}, true); }), HasSubstr("true or false"));
  EXPECT_THAT(error_of([&] { c.nested("t"); }), HasSubstr("/text_config/t: a model config"));
}

TEST(Family, ArchitectureStems) {
  EXPECT_EQ(architecture_stem("LlamaForCausalLM"), "Llama");
  EXPECT_EQ(architecture_stem("GPT2LMHeadModel"), "GPT2");
  EXPECT_EQ(architecture_stem("T5WithLMHeadModel"), "T5");
  EXPECT_EQ(architecture_stem("BertModel"), "Bert");
  EXPECT_EQ(architecture_stem("Model"), "Model");
  EXPECT_EQ(architecture_stem("T5EncoderModel"), "T5Encoder");
  EXPECT_EQ(architecture_stem("MixFormerSequentialForCausalLM"), "MixFormerSequential");
}

TEST(Family, RefusesWhatIsNoModel) {
  const auto import = [](std::string_view text) {
    return error_of([&] { import_hf_config(text, "config.json", {}); });
  };
  EXPECT_THAT(import("[1, 2]"), HasSubstr("config.json: a model configuration is a JSON object"));
  EXPECT_THAT(import(R"({"producer": {}})"), HasSubstr("this is not a model configuration"));
  EXPECT_THAT(import(R"({"model_type": "foo"})"),
              HasSubstr("config.json: /model_type: model_type 'foo' is not supported (supported"
                        " families: "));
  EXPECT_THAT(import(R"({"model_type": 3})"), HasSubstr("model_type must be a string, but is 3"));
  EXPECT_THAT(import(R"({"architectures": ["FooForBar"]})"),
              HasSubstr("/architectures: architecture 'FooForBar' is not supported"));
  EXPECT_THAT(import(R"({"network": {"model_type": "whisper"}})"),
              HasSubstr("/network/model_type"));
  EXPECT_THAT(import(R"({"hidden_dim": 1, "ffn_embed_dim": 4})"), HasSubstr("size summary"));
  EXPECT_THAT(import(R"({"model_type": "llama", "hidden_dim": 8192, "ffn_embed_dim": 4})"),
              HasSubstr("size summary"));
  EXPECT_THAT(import(R"({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]})"),
              HasSubstr("'LlamaForCausalLMEagle3' is a draft model for speculative decoding"));
  EXPECT_THAT(import(R"({"model_type": "qwen3_next"})"),
              HasSubstr("cannot express its linear-attention layers"));
  EXPECT_THAT(import("{"), HasSubstr("not valid JSON"));
}

TEST(Family, TokenShapeBoundsBatchAndSequence) {
  EXPECT_EQ(token_shape({.global_batch = 8}, 131072).seq, 4096);
  EXPECT_EQ(token_shape({.global_batch = 8}, 512).seq, 512);
  EXPECT_EQ(token_shape({.global_batch = 8, .seq = 9000}, 512).seq, 9000);
  EXPECT_THAT(error_of([] { token_shape({.global_batch = 0}, 512); }), HasSubstr("but is 0"));
  EXPECT_THAT(error_of([] { token_shape({.global_batch = 1, .seq = -1}, 512); }),
              HasSubstr("but is -1"));
  const Json json = Json::parse(R"({"n_positions": 1024})");
  const Config c(json, "config.json");
  EXPECT_EQ(
      error_of([&] { learned_token_shape(c, {.seq = 2048}, 1024, {"n_positions"}); }),
      "config.json: /n_positions: a sequence of 2048 tokens needs 2048 learned positions, but "
      "n_positions is 1024 (at most --seq 1024)");
}

}  // namespace
}  // namespace meshwright::hf
