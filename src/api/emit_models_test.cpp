// The emitter on models by name: what of them Megatron-LM is told, and why others are refused.
#include <gmock/gmock.h>

#include "api/request.h"
#include "emit/decoder_model.h"
#include "emit/megatron_model.h"
#include "emit/megatron_plan.h"

namespace meshwright {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Loaded loaded(const std::string& model, bool mtp = false, std::int64_t batch = 16) {
  Request request;
  request.model = model;
  request.cluster = "dgx-h100:1";
  request.import.global_batch = batch;
  request.import.mtp = mtp;
  return load(request);
}

MegatronPlanReading read(const std::string& model, bool mtp = false) {
  const Loaded l = loaded(model, mtp);
  const int layers = static_cast<int>(l.segments.size()) / 2;
  const Plan plan =
      make_plan(l.model.graph, l.segments, l.cluster, {}, 16,
                {.pp = 2, .dp = 4, .micro_batch = 1, .zero = StateSharding::kZero1}, {layers});
  return read_megatron_plan({plan, l.model.graph, l.segments, l.cluster, model});
}

std::string words(const std::string& model, bool mtp = false) {
  const MegatronPlanReading reading = read(model, mtp);
  EXPECT_THAT(reading.faults, IsEmpty()) << model;
  std::string text;
  for (const std::string& word : to_argv(reading.plan.whole)) text += word + " ";
  return text;
}

TEST(EmitModels, Gpt2) {
  EXPECT_THAT(words("gpt2"),
              AllOf(HasSubstr("--num-layers 12 --hidden-size 768 --ffn-hidden-size 3072 "),
                    HasSubstr("--position-embedding-type learned_absolute"),
                    HasSubstr("--max-position-embeddings 1024"), HasSubstr("--vocab-size 50257"),
                    Not(HasSubstr("--disable-bias-linear")), Not(HasSubstr("--untie-emb")),
                    Not(HasSubstr("--normalization"))));
}

TEST(EmitModels, Llama) {
  EXPECT_THAT(words("llama-3-8b"),
              AllOf(HasSubstr("--group-query-attention --num-query-groups 8 "),
                    HasSubstr("--kv-channels 128 "), HasSubstr("--swiglu --disable-bias-linear "),
                    HasSubstr("--normalization RMSNorm"), HasSubstr("--untie-emb")));
  EXPECT_THAT(words("qwen2-7b"), HasSubstr("--add-qkv-bias"));
  EXPECT_THAT(words("qwen3-8b"), HasSubstr("--qk-layernorm"));
}

TEST(EmitModels, Experts) {
  EXPECT_THAT(words("mixtral-8x7b"),
              AllOf(HasSubstr("--num-experts 8 --moe-ffn-hidden-size 14336 "),
                    HasSubstr("--moe-router-topk 2"), Not(HasSubstr("--moe-layer-freq"))));
  EXPECT_THAT(words("deepseek-v2-lite"),
              AllOf(HasSubstr("--multi-latent-attention"), HasSubstr("--kv-lora-rank 512"),
                    HasSubstr("--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"),
                    HasSubstr("--moe-layer-freq ([0]+[1]*26)"), HasSubstr("--moe-router-topk 6"),
                    HasSubstr("--moe-shared-expert-intermediate-size 2816"),
                    Not(HasSubstr("--q-lora-rank"))));
  EXPECT_THAT(words("gpt-oss-20b"),
              AllOf(HasSubstr("--softmax-type learnable"), HasSubstr("--window-size 127,0"),
                    HasSubstr("--window-attn-skip-freq ([1]+[0])*12"), HasSubstr("--quick-geglu"),
                    Not(HasSubstr("--disable-bias-linear"))));
}

TEST(EmitModels, PredictionModulesHaveTheirUnit) {
  EXPECT_THAT(
      words("deepseek-v3"),
      AllOf(HasSubstr("--q-lora-rank 1536"), HasSubstr("--moe-router-enable-expert-bias"),
            HasSubstr("--moe-router-num-groups 8 --moe-router-group-topk 4"),
            HasSubstr("--moe-router-score-function sigmoid"), Not(HasSubstr("--mtp-num-layers"))));
  EXPECT_THAT(words("deepseek-v3", /*mtp=*/true),
              AllOf(HasSubstr("--mtp-num-layers 1"),
                    HasSubstr("--pipeline-model-parallel-layout Et*31|t*30mL")));
}

TEST(EmitModels, OthersAreRefusedWithAReason) {
  const auto why = [](const char* model) { return read(model).faults; };
  EXPECT_THAT(why("t5-small"), ElementsAre("it is an encoder-decoder model"));
  EXPECT_THAT(why("bert-base"),
              ElementsAre("its attention sees later tokens, as an encoder's does"));
  EXPECT_THAT(why("vit-base"), ElementsAre("it is an image model"));
  EXPECT_THAT(why("gpt-neox-20b"), Contains(HasSubstr("attention and MLP run in parallel")));
  EXPECT_THAT(why("falcon-7b"), Contains(HasSubstr("attention and MLP run in parallel")));
  EXPECT_THAT(
      why("gemma-2b"),
      Contains("before the layers: there is no place for 'model.embed_tokens.scale' (scale)"));
  EXPECT_THAT(why("bloom-560m"), Contains(HasSubstr("word_embeddings_layernorm")));
  EXPECT_THAT(why("opt-125m"), ElementsAre("plain MLPs with relu are no option of Megatron's"));
}

}  // namespace
}  // namespace meshwright
