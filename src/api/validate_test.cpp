#include "api/validate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "api/calibrate.h"
#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

constexpr const char* kTable =
    "source,gpu,gpus,gpus_per_node,interconnect,model,layers,hidden,heads,kv_heads,ffn,vocab,seq,"
    "global_batch,micro_batch,tp,pp,vpp,dp,cp,ep,zero_stage,sequence_parallel,recompute,precision,"
    "flash_attention,step_time_s,peak_mem_gb,notes\n"
    "lab,A100,8,8,,gpt,8,1024,16,16,4096,50304,1024,32,2,1,1,1,8,1,1,,,none,bf16,yes,{},8,\n"
    "lab,A100,8,8,,gpt,8,1024,16,16,4096,50304,1024,32,2,2,1,1,4,1,1,,,none,bf16,yes,{},6,\n"
    "lab,A100,8,8,,gpt,8,1024,16,16,4096,50304,1024,32,2,1,4,1,2,1,1,,,none,bf16,yes,{},7,\n"
    "lab,A100,8,8,,gpt,8,1024,16,16,4096,50304,1024,32,2,1,3,1,2,1,1,,,none,bf16,yes,1,7,\n"
    "lab,A100,8,8,,big,80,8192,64,64,32768,50304,1024,32,2,1,1,1,8,1,1,,,none,bf16,yes,,,RESULT: "
    "OOM\n";

PreparedRuns prepared(double a, double b, double c) {
  return PreparedRuns(read_measured_runs(fmt::format(fmt::runtime(kTable), a, b, c), "t.csv"));
}

TEST(Validate, ComparesAndReports) {
  std::size_t seen = 0;
  PreparedRuns runs(read_measured_runs(fmt::format(fmt::runtime(kTable), 0.1, 0.2, 0.3), "t.csv"),
                    [&](std::size_t done, std::size_t all) {
                      EXPECT_LE(done, all);
                      ++seen;
                    });
  EXPECT_EQ(seen, 4u);
  const auto predictions = runs.predict(shipped_efficiency());
  ASSERT_EQ(predictions.size(), 4u);
  const ValidationReport report = compare(runs, predictions);
  ASSERT_EQ(report.sources.size(), 1u);
  const SourceReport& lab = report.sources[0];
  EXPECT_EQ(lab.used, 4);
  EXPECT_EQ(lab.timed, 3);
  EXPECT_EQ(lab.groups, 1);
  EXPECT_EQ(lab.weighed, 3);
  EXPECT_EQ(lab.skipped.at("degrees do not fill the devices"), 1);
  EXPECT_EQ(lab.confusion.full_as_predicted, 1);
  EXPECT_EQ(lab.confusion.fits_as_predicted, 3);
  EXPECT_EQ(report.balanced_accuracy, 1);
  EXPECT_THAT(describe(report, true), HasSubstr("t.csv:2"));
  EXPECT_THAT(describe(report), HasSubstr("degrees do not fill the devices"));
  const Json json = report_json(report);
  EXPECT_EQ(json.at("rows").size(), 4u);
  EXPECT_EQ(json.at("sources").at(0).at("step").at("runs").get<int>(), 3);
  EXPECT_FALSE(report_json(report, false).contains("rows"));
}

TEST(Validate, RowsOfAnEarlierTableCountOnce) {
  const auto folder = std::filesystem::path(testing::TempDir());
  const std::string text = fmt::format(fmt::runtime(kTable), 0.1, 0.2, 0.3);
  for (const char* name : {"one.csv", "two.csv"}) std::ofstream(folder / name) << text;
  const MeasuredRuns runs = read_measured_files({folder / "one.csv", folder / "two.csv"});
  EXPECT_EQ(runs.runs.size(), 4u);
  EXPECT_EQ(runs.skipped.size(), 2u + 4u);
  EXPECT_THROW(validate({folder / "three.csv"}), Error);
}

// Times made by the model itself with another number: the search finds it.
TEST(Calibrate, FindsTheNumberThatMadeTheTimes) {
  const Json start = shipped_efficiency();
  const std::vector<FitParameter> scale = {
      {"/engines/default/compute_scale", 0.5, 3, true, "default", {}, {}}};
  const PreparedRuns blank = prepared(1, 1, 1);
  const auto made = blank.predict(with_values(start, scale, {1.7}));
  const PreparedRuns runs = prepared(made[0].step.value, made[1].step.value, made[2].step.value);
  const FitResult result = fit(runs, {}, start, scale, FitGoal::kStepTime);
  EXPECT_LT(result.after, result.before / 10);
  EXPECT_NEAR(result.values[0], 1.7, 0.05);
  const FitResult again = fit(runs, {}, start, scale, FitGoal::kStepTime);
  EXPECT_EQ(again.values, result.values);
}

TEST(Calibrate, HalvesKeepGroupsTogether) {
  const PreparedRuns runs = prepared(1, 2, 3);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Halves halves = split_groups(runs, seed);
    EXPECT_EQ(halves.fit.size() + halves.held_out.size(), 4u);
    for (std::size_t i : halves.fit) {
      for (std::size_t j : halves.held_out) EXPECT_NE(runs.group()[i], runs.group()[j]);
    }
  }
}

// The promise of docs/validation.md; later changes must not lose it.
TEST(Validate, ReferenceTables) {
  const std::filesystem::path folder =
      std::filesystem::path(MESHWRIGHT_REFERENCE_DATA) / "measured";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no reference tables at " << folder;
  std::vector<std::filesystem::path> files;
  for (const char* name :
       {"aleph_alpha_layouts", "playbook_nanotron", "playbook_nanotron_failed", "bloom_bigscience",
        "vtrain_ground_truth", "amp", "llm_foundry", "internevo", "torchtitan", "zero_bubble",
        "vocab_parallel", "megatron_lm_golden", "korthikanti_2022"}) {
    files.push_back(folder / (std::string(name) + ".csv"));
  }
  const ValidationReport report = validate(files);
  std::fputs(describe(report).c_str(), stdout);
  EXPECT_LE(report.mape, 0.25);
  EXPECT_LE(report.regret_mean, 0.10);
  EXPECT_GE(report.balanced_accuracy, 0.85);
}

}  // namespace
}  // namespace meshwright
