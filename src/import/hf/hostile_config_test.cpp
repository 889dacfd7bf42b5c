#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "import/import.h"
#include "ir/graph.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

std::string import(std::string_view text, const ImportOptions& options = {}) {
  try {
    return import_hf_config(text, "config.json", options).family;
  } catch (const Error& e) {
    return e.what();
  }
}

// A small legal configuration with some keys replaced (JSON merge patch).
std::string llama(std::string_view patch) {
  Json json = Json::parse(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100})");
  json.merge_patch(Json::parse(patch));
  return json.dump();
}

TEST(HostileConfig, TheBaseIsLegal) { EXPECT_EQ(import(llama("{}")), "llama"); }

TEST(HostileConfig, SizesOutOfRange) {
  EXPECT_EQ(import(llama(R"({"hidden_size": 1000000000000})")),
            "config.json: /hidden_size: hidden_size must be a whole number from 1 to 2147483648, "
            "but is 1000000000000");
  EXPECT_THAT(import(llama(R"({"hidden_size": -64})")), HasSubstr("but is -64"));
  EXPECT_THAT(import(llama(R"({"num_attention_heads": 0})")), HasSubstr("but is 0"));
  EXPECT_THAT(import(llama(R"({"vocab_size": 3.5})")), HasSubstr("but is 3.5"));
  EXPECT_THAT(import(llama(R"({"intermediate_size": "128"})")),
              HasSubstr("/intermediate_size: intermediate_size must be a whole number"));
  EXPECT_THAT(import(llama(R"({"num_hidden_layers": 1000000})")),
              HasSubstr("num_hidden_layers must be at most 10000, but is 1000000"));
  EXPECT_THAT(import(llama(R"({"num_hidden_layers": [1, 2]})")), HasSubstr("but is a list of 2"));
  EXPECT_THAT(import(llama(R"({"vocab_size": 2147483648, "hidden_size": 2147483648})")),
              HasSubstr("model.embed_tokens.weight: tensor"));
  EXPECT_THAT(import(llama(R"({"num_attention_heads": 2147483648, "head_dim": 2147483648})")),
              HasSubstr("num_attention_heads must be at most 1048576"));
  EXPECT_THAT(import(llama(R"({"head_dim": 2147483648, "num_attention_heads": 8192})")),
              HasSubstr("must be between 1 and 2^40"));
}

TEST(HostileConfig, HeadsThatDoNotDivide) {
  EXPECT_EQ(import(llama(R"({"num_attention_heads": 7})")),
            "config.json: /num_attention_heads: num_attention_heads 7 does not divide hidden_size "
            "64, and no head_dim is given (legal: 1, 2, 4, 8, 16, 32, 64)");
  EXPECT_EQ(import(llama(R"({"num_attention_heads": 7, "head_dim": 16})")), "llama");
  EXPECT_EQ(import(llama(R"({"num_attention_heads": 32, "num_key_value_heads": 3})")),
            "config.json: /num_key_value_heads: num_key_value_heads 3 does not divide "
            "num_attention_heads 32 (legal: 1, 2, 4, 8, 16, 32)");
}

TEST(HostileConfig, Layers) {
  EXPECT_THAT(import(R"({"model_type": "gemma3_text", "num_hidden_layers": 2,
                         "layer_types": ["full_attention"]})"),
              HasSubstr("/layer_types: layer_types has 1 entries for 2 layers"));
  EXPECT_THAT(import(R"({"model_type": "gemma3_text", "num_hidden_layers": 1,
                         "layer_types": ["linear_attention"]})"),
              HasSubstr("layers of type 'linear_attention' are not supported"));
  EXPECT_THAT(import(R"({"model_type": "gemma3_text", "num_hidden_layers": 1,
                         "layer_types": [1]})"),
              HasSubstr("/layer_types: layer_types must hold strings, but has 1"));
  EXPECT_THAT(import(R"({"model_type": "deepseek_v3", "num_hidden_layers": 2,
                         "moe_layer_freq": [1]})"),
              HasSubstr("moe_layer_freq has 1 entries for 2 layers"));
}

TEST(HostileConfig, Experts) {
  EXPECT_EQ(import(R"({"model_type": "mixtral", "num_local_experts": 4,
                       "num_experts_per_tok": 5})"),
            "config.json: /num_experts_per_tok: num_experts_per_tok is 5, but there are only 4 "
            "experts (num_local_experts)");
  EXPECT_THAT(import(R"({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 2,
                         "moe_top_k": 3}})"),
              HasSubstr("/ffn_config/moe_top_k: moe_top_k is 3"));
  EXPECT_THAT(import(R"({"model_type": "deepseek_v3", "n_group": 7})"),
              HasSubstr("n_group 7 does not divide the 256 experts"));
  EXPECT_THAT(import(R"({"model_type": "deepseek_v2"})"),
              HasSubstr("/num_experts_per_tok: num_experts_per_tok is missing"));
}

TEST(HostileConfig, OtherValues) {
  EXPECT_THAT(import(llama(R"({"hidden_act": "xielu"})")),
              HasSubstr("/hidden_act: hidden_act 'xielu' is not supported (supported: gelu, "));
  EXPECT_THAT(import(llama(R"({"tie_word_embeddings": "yes"})")), HasSubstr("true or false"));
  EXPECT_THAT(import(llama(R"({"partial_rotary_factor": 2})")), HasSubstr("from 0 to 1"));
  EXPECT_THAT(import(llama(R"({"rope_scaling": {"partial_rotary_factor": "x"}})")),
              HasSubstr("/rope_scaling/partial_rotary_factor"));
  EXPECT_THAT(import(R"({"model_type": "gptj", "rotary_dim": 999})"),
              HasSubstr("rotary_dim must be even and at most the head width 256"));
  EXPECT_THAT(
      import(R"({"model_type": "qwen3_vl", "text_config": [1]})"),
      HasSubstr("/text_config: a model configuration is a JSON object, but this is a list"));
  EXPECT_THAT(import(R"({"model_type": "qwen3_vl", "text_config": {"hidden_size": -1}})"),
              HasSubstr("/text_config/"));
  EXPECT_THAT(import(R"({"model_type": "gpt2"})", {.seq = 2048}),
              HasSubstr("a sequence of 2048 tokens needs 2048 learned positions"));
  EXPECT_THAT(import(R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"},
                         "vision_config": {}})",
                     {.seq = 256}),
              HasSubstr("an image takes 256 tokens, which leaves no text in a sequence of 256"));
}

TEST(HostileConfig, ManyLayersStayBounded) {
  const Model model = import_hf_config(llama(R"({"num_hidden_layers": 10000})"), "c", {});
  EXPECT_LT(model.graph.ops.size(), 2'000'000u);
}

}  // namespace
}  // namespace meshwright
