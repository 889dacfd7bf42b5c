#include "api/calibrate_kernels.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "api/calibration.h"
#include "api/coordinate_search.h"
#include "api/efficiency_text.h"
#include "base/error.h"
#include "cost/cost_model.h"

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const KernelFit& fit_of(const KernelFits& fits, const std::string& pointer) {
  for (const KernelFit& f : fits.fits) {
    if (f.pointer == pointer) return f;
  }
  throw InternalError("no fit of " + pointer);
}

// Rates that a device with 70 % of its peak and 20 us per kernel would show.
TEST(FitKernels, FindsShareAndFixedCost) {
  std::string rows = "gpu,benchmark,shape,value,unit,peak\n";
  for (double n : {1024.0, 2048.0, 4096.0, 8192.0}) {
    const double flops = 2 * n * n * n;
    const double seconds = flops / (0.7 * 312e12) + 20e-6;
    rows += fmt::format("A100-80GB SXM,fp16 GEMM,{0}x{0}x{0},{1},TFLOPS,312\n", n,
                        flops / seconds / 1e12);
  }
  rows +=
      "A100-80GB SXM,HBM copy,,1530,GB/s,\nA100-80GB SXM,PCIe,,20,GB/s,\nAbacus,HBM "
      "copy,,1,GB/s,\n";
  Json file = shipped_efficiency();
  const KernelFits fits = fit_kernels(parse_csv(rows, "k.csv"), file);
  EXPECT_EQ(fits.skipped, 2);
  const KernelFit& products = fit_of(fits, "/architectures/ampere/matmul_16bit");
  EXPECT_EQ(products.rows, 4);
  EXPECT_LT(products.after, 0.03);
  const Json& ampere = file.at("architectures").at("ampere");
  EXPECT_NEAR(ampere.at("matmul_16bit").at("fraction").get<double>(), 0.7, 0.03);
  EXPECT_NEAR(ampere.at("matmul_16bit").at("fixed_us").get<double>(), 20, 3);
  EXPECT_NEAR(ampere.at("memory").at("fraction").get<double>(), 1530.0 / 2039, 1e-3);
  EXPECT_THAT(ampere.at("source").get<std::string>(), HasSubstr("5 measured kernels"));
}

// The best of many shapes overstates: as much where only the best is known as where both are.
TEST(FitKernels, TheBestShapeIsTakenWithSalt) {
  Json file = shipped_efficiency();
  for (const char* architecture : {"ampere", "cdna3"}) {
    file["architectures"][architecture] = {{"matmul_16bit", {{"fraction", 0.5}, {"fixed_us", 1}}}};
  }
  fit_kernels(parse_csv("gpu,benchmark,shape,value,unit,peak\n"
                        "A100 SXM,bf16 GEMM,16384x16384x16384,200,TFLOPS,312\n"
                        "A100 SXM,bf16 GEMM max,16384x16384x16384,250,TFLOPS,312\n"
                        "MI300X,bf16 GEMM max,16384x16384x16384,800,TFLOPS,1307\n",
                        "k.csv"),
              file);
  const double share =
      file.at("architectures").at("cdna3").at("matmul_16bit").at("fraction").get<double>();
  EXPECT_NEAR(share * 1307.4, 800 * 200 / 250.0, 25);
}

TEST(FitLinks, FindsBandwidthInsideAndBetweenHosts) {
  std::string rows =
      "gpu,nodes,gpus,collective,bytes,busbw_GBps,algbw,source,interconnect,algo,time_us,notes\n";
  for (double bytes : {1e7, 1e8, 1e9, 4e9}) {
    rows += fmt::format("H100,1,8,all_reduce,{},,,s,NVSwitch,,{},\n", bytes,
                        (60e-6 + 2 * 7 / 8.0 * bytes / 360e9) * 1e6);
    rows += fmt::format("H100,4,32,all_reduce,{},,,s,NVLink + NDR IB,,{},\n", bytes,
                        (200e-6 + 2 * 3 / 4.0 * bytes / (400e9 * 0.5)) * 1e6);
  }
  rows += "H100,4,32,all_reduce,1e9,100,,s,carrier pigeon,,,\nH100,1,8,all_reduce,1000,1,,s,,,,\n";
  Json file = shipped_efficiency();
  file["architectures"]["hopper"]["links"]["nvlink"].erase("source");
  const KernelFits fits = fit_links(parse_csv(rows, "n.csv"), file);
  EXPECT_EQ(fits.skipped, 2);
  EXPECT_LT(fit_of(fits, "/architectures/hopper/links/nvlink").after, 0.03);
  EXPECT_NEAR(file.at("architectures")
                  .at("hopper")
                  .at("links")
                  .at("nvlink")
                  .at("all_reduce_fraction")
                  .get<double>(),
              0.8, 0.05);
  EXPECT_NEAR(file.at("default").at("links").at("ib").at("all_reduce_fraction").get<double>(), 0.5,
              0.05);
}

TEST(FitKernels, FaultyCellsNameTheLine) {
  Json file = shipped_efficiency();
  try {
    fit_kernels(parse_csv("gpu,benchmark,shape,value,unit\nA100,HBM,,fast,GB/s\n", "k.csv"), file);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.where(), "k.csv:2");
    EXPECT_THAT(e.message(), HasSubstr("column 'value' must be a number"));
  }
  // Shapes that are none are left out.
  const KernelFits fits = fit_kernels(
      parse_csv("gpu,benchmark,shape,value,unit\nA100,fp16 GEMM,8x8,1,TFLOPS\nA100,fp16 "
                "GEMM,1e99x1x1,1,TFLOPS\nA100,fp16 GEMM,8x8x8x8,1,TFLOPS\n",
                "k.csv"),
      file);
  EXPECT_EQ(fits.skipped, 3);
}

TEST(CoordinateSearch, FindsAMinimumOfSeparateEffects) {
  std::vector<double> now = {1, 0.5};
  const auto loss = [](const std::vector<double>& v) {
    return std::abs(std::log(v[0] / 30)) + std::abs(v[1] - 0.2);
  };
  SearchTarget target;
  target.tried = [&](std::size_t k, double candidate) {
    std::vector<double> changed = now;
    changed[k] = candidate;
    return loss(changed);
  };
  target.kept = [&](std::size_t k, double candidate) { now[k] = candidate; };
  const auto found = coordinate_search(now, {{1, 1000, true}, {0, 1, false}}, loss(now), target);
  EXPECT_NEAR(found[0], 30, 1.5);
  EXPECT_NEAR(found[1], 0.2, 0.01);
}

TEST(EfficiencyText, RoundsAndReadsBack) {
  const Json file = parse_json(
      R"({"default": {"launch_us": 4.98765, "note": "x"}, "engines": {"a": {"b": 100.0, "c": 0.00012345}}})",
      "t.json");
  EXPECT_EQ(efficiency_text(file),
            "{\"default\": {\"launch_us\": 4.99, \"note\": \"x\"}, \"engines\": {\"a\": {\"b\": "
            "100, \"c\": 0.000123}}}\n");
  const std::string shipped = efficiency_text(shipped_efficiency());
  EXPECT_EQ(efficiency_text(parse_json(shipped, "t.json")), shipped);
}

}  // namespace
}  // namespace meshwright
