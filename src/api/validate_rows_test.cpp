#include "api/validate_rows.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kHeader =
    "source,gpu,gpus,gpus_per_node,interconnect,model,layers,hidden,heads,kv_heads,ffn,vocab,seq,"
    "global_batch,micro_batch,tp,pp,vpp,dp,cp,ep,zero_stage,sequence_parallel,recompute,precision,"
    "flash_attention,step_time_s,peak_mem_gb,notes\n";

MeasuredRuns read(const std::string& rows) { return read_measured_runs(kHeader + rows, "t.csv"); }

std::string failure(const std::string& text) {
  try {
    read_measured_runs(text, "t.csv");
  } catch (const Error& e) {
    return e.where() + ": " + e.message();
  }
  return "no error";
}

std::string skipped(const std::string& row) {
  const MeasuredRuns runs = read(row);
  return runs.skipped.size() == 1 ? runs.skipped[0].reason : "not skipped";
}

TEST(Rows, LayoutSweep) {
  const MeasuredRuns runs = read(
      "\"Efficient Parallelization Layouts (Hagemann et al. 2023, Aleph Alpha)\",A100,64,,,"
      "LLaMA-13B (128k "
      "vocab),40,5120,40,40,13824,128000,2048,2048,2,2,2,1,16,1,1,,True,none,bf16,2,"
      "34.8,,\"label='flash_attention2 + RMS kernel'\"\n"
      "\"Efficient Parallelization Layouts (Hagemann et al. 2023, Aleph Alpha)\",A100,64,,,"
      "LLaMA-13B (128k vocab),40,5120,40,40,13824,128000,2048,2048,8,1,1,1,64,1,1,,,full,bf16,no,,,"
      "\"label='torch'. RESULT: OOM Error\"\n");
  ASSERT_EQ(runs.runs.size(), 2u);
  const MeasuredRun& r = runs.runs[0];
  EXPECT_EQ(r.place, "t.csv:2");
  EXPECT_EQ(r.source, "aleph_alpha_layouts");
  EXPECT_EQ(r.engine, "scaling-rms");
  EXPECT_EQ(r.cluster, "a100-sxm-80:8x8@ib200x8");
  EXPECT_TRUE(r.sizes.gated);
  EXPECT_FALSE(r.sizes.tied);
  EXPECT_EQ(r.sizes.vocab, 128000);
  EXPECT_EQ(to_string(r.degrees), "pp2 tp2+sp dp16 mbs2 zero1");
  EXPECT_THAT(r.layers, ElementsAre(20, 20));
  EXPECT_EQ(r.import.attention, "flash");
  EXPECT_EQ(r.step->value, 34.8);
  EXPECT_FALSE(r.out_of_memory);
  EXPECT_EQ(runs.runs[1].engine, "scaling-torch");
  EXPECT_EQ(runs.runs[1].import.attention, "unfused");
  EXPECT_EQ(runs.runs[1].degrees.recompute, Recompute::kFull);
  EXPECT_TRUE(runs.runs[1].out_of_memory);
  EXPECT_FALSE(runs.runs[1].step);
}

// The output layer of a small model with a large vocabulary weighs as much as four of its layers.
TEST(Rows, StagesFilledByWeight) {
  const std::string row =
      "HF ultra-scale playbook / nanotron benchmark sweep,H100-80GB,{},8,8xH100 nodes (HF science "
      "cluster),Llama-1B,16,2048,32,32,8192,131072,4096,256,1,1,{},1,{},1,1,1,,none,bf16,yes,3.5,"
      "20.6,tie_word_embeddings=True\n";
  const auto with = [&](int gpus, int pp, int dp) {
    std::string text = row;
    for (int value : {gpus, pp, dp}) text.replace(text.find("{}"), 2, std::to_string(value));
    return text;
  };
  const MeasuredRuns runs = read(with(16, 2, 8));
  ASSERT_EQ(runs.runs.size(), 1u);
  EXPECT_THAT(runs.runs[0].layers, ElementsAre(11, 5));
  EXPECT_EQ(runs.runs[0].cluster, "h100-sxm-80:2x8@efa100x32");
  EXPECT_EQ(runs.runs[0].engine, "nanotron-pipeline");
  EXPECT_EQ(runs.runs[0].peak->value, 20.6 * 1073741824.0);
  EXPECT_EQ(skipped(with(8, 8, 1)), "the engine's cut leaves a stage without layers");
  EXPECT_EQ(skipped(with(512, 4, 128)), "the engine refuses fewer micro-batches than stages");
}

TEST(Rows, SchedulesAndCuts) {
  const std::string zb =
      "\"Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024) Table "
      "4\",A100-SXM-80GB,8,8,single "
      "node NVLink,GPT 1.5B,22,2304,24,24,,,1024,144,6,1,8,,1,1,1,,,,,,1.5254,30.0,\"schedule={}, "
      "one transformer layer fewer{}\"\n";
  const auto with = [&](const std::string& schedule, const std::string& more) {
    std::string text = zb;
    text.replace(text.find("{}"), 2, schedule);
    text.replace(text.find("{}"), 2, more);
    return text;
  };
  const MeasuredRuns plain = read(with("1F1B", ""));
  ASSERT_EQ(plain.runs.size(), 1u);
  EXPECT_THAT(plain.runs[0].layers, ElementsAre(2, 3, 3, 3, 3, 3, 3, 2));
  EXPECT_EQ(plain.runs[0].training.dtype, DType::kF16);
  const MeasuredRuns interleaved = read(with("1F1B-I", ". one transformer layer per chunk"));
  ASSERT_EQ(interleaved.runs.size(), 1u);
  EXPECT_EQ(interleaved.runs[0].degrees.vpp, 3);
  EXPECT_EQ(interleaved.runs[0].layers.size(), 24u);
  EXPECT_EQ(interleaved.runs[0].layers.front(), 0);
  EXPECT_EQ(interleaved.runs[0].layers.back(), 0);
  EXPECT_EQ(skipped(with("ZB-2p", "")), "schedule not simulated: ZB-2p");

  const MeasuredRuns amp = read(
      "AMP (NeurIPS 2022) homogeneous,T4,16,4,\"4x g4dn.12xlarge (4 T4 each, 50 Gbps)\",GPT-2 24L "
      "h1024,24,1024,,,,52256,1024,32,1,1,2,1,8,1,1,,,,,,1.28,,\"partition boundaries=[0, 14, 30] "
      "in AMP layer units\"\n");
  ASSERT_EQ(amp.runs.size(), 1u);
  EXPECT_THAT(amp.runs[0].layers, ElementsAre(12, 12));
  EXPECT_EQ(amp.runs[0].sizes.heads, 16);
  EXPECT_EQ(amp.runs[0].cluster, "t4:4x4@eth50");
}

TEST(Rows, UnknownSourcesGetPlainDefaults) {
  const MeasuredRuns runs = read(
      "our "
      "lab,H100,16,8,,mine,24,2048,16,8,,50000,2048,64,2,2,1,1,8,1,1,,,selective,bf16,yes,1.5,,\n");
  ASSERT_EQ(runs.runs.size(), 1u);
  EXPECT_EQ(runs.runs[0].source, "our lab");
  EXPECT_EQ(runs.runs[0].engine, "default");
  EXPECT_EQ(runs.runs[0].cluster, "h100-sxm-80:2x8");
  EXPECT_EQ(runs.runs[0].degrees.recompute, Recompute::kSelective);
  EXPECT_EQ(runs.runs[0].sizes.kv_heads, 8);
}

TEST(Rows, WhatIsMissingIsSaid) {
  EXPECT_EQ(skipped("x,H100,,8,,m,24,2048,16,,,,2048,64,2,1,1,1,,1,1,,,,bf16,yes,1.5,,\n"),
            "gpus not given");
  EXPECT_EQ(skipped("x,Abacus,8,8,,m,24,2048,16,,,,2048,64,2,1,1,1,,1,1,,,,bf16,yes,1.5,,\n"),
            "device not in the catalogue");
  EXPECT_EQ(skipped("x,H100,8,8,,m,24,2048,16,,,,2048,64,2,3,1,1,,1,1,,,,bf16,yes,1.5,,\n"),
            "degrees do not fill the devices");
  EXPECT_EQ(skipped("x,H100,8,8,,m,24,2048,16,,,,2048,64,2,1,1,1,,1,1,,,,bf16,yes,,,\n"),
            "nothing measured");
}

TEST(Rows, FaultyTablesNameTheLine) {
  EXPECT_EQ(failure("a,b\n1,2\n"), "t.csv:1: no column 'source': not a table of measured runs");
  EXPECT_THAT(failure(std::string(kHeader) +
                      "x,H100,8,8,,m,24,2048,16,,,,2048,64,two,1,1,1,,1,1,,,,bf16,yes,1.5,,\n"),
              HasSubstr("t.csv:2: column 'micro_batch' must be a number of at least 0: 'two'"));
  EXPECT_THAT(failure(std::string(kHeader) +
                      "x,H100,8,8,,m,1e300,2048,16,,,,2048,64,1,1,1,1,,1,1,,,,bf16,yes,1.5,,\n"),
              HasSubstr("t.csv:2: column 'layers'"));
  EXPECT_THAT(failure(std::string(kHeader) +
                      "x,H100,8,8,,m,24,2048,16,,,,2048,64,1,1,1,1,,1,1,7,,,bf16,yes,1.5,,\n"),
              HasSubstr("column 'zero_stage' must be 0 to 3: 7"));
}

TEST(Rows, HugeSizesAreAnsweredNotCrashedOn) {
  const std::string row =
      "x,H100,1000000,8,,m,1000000000000,1000000000000,1000000000000,,1000000000000,1000000000000,"
      "1000000000000,1000000000000,1000000000000,1,1,1,,1,1,,,,bf16,yes,1.5,,\n";
  EXPECT_NE(skipped(row), "not skipped");
}

TEST(Rows, EvenCutsGiveTheRemainderToTheFirst) {
  GptSizes z;
  z.layers = 10;
  EXPECT_THAT(cut_layers(CutRule::kEven, z, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_TRUE(cut_layers(CutRule::kEven, z, 11).empty());
}

}  // namespace
}  // namespace meshwright
