#include "cluster/catalogue.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"

namespace meshwright {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kGiB = 0x1p30;

std::string device_error(std::string_view name) {
  try {
    find_device(name);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Catalogue, SortedAndPlausible) {
  const auto& kinds = device_catalogue();
  EXPECT_GE(kinds.size(), 35u);
  EXPECT_TRUE(std::is_sorted(kinds.begin(), kinds.end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const DeviceKind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    EXPECT_EQ(find_device(kind.name).name, kind.name);
    EXPECT_GT(kind.memory.value, 1 * kGiB);
    EXPECT_GT(kind.fp32.value, 0);
    EXPECT_EQ(kind.link.empty(), kind.device_link.value == 0);
    EXPECT_GT(kind.pcie.value, 0);
    if (!kind.link.empty()) {
      EXPECT_EQ(find_link(kind.link).name, kind.link);
    }
    // Arithmetic intensity of real devices: tens to hundreds of FLOP per byte.
    const double best = std::max(kind.bf16.value, kind.fp16.value);
    if (kind.vendor != "cpu") {
      EXPECT_GT(best / kind.memory_bandwidth.value, 30);
      EXPECT_LT(best / kind.memory_bandwidth.value, 700);
    }
    if (kind.fp8.value > 0) {
      EXPECT_NEAR(kind.fp8.value / kind.bf16.value, 2, 0.03);
    }
    EXPECT_FALSE(default_host(kind).name.empty());
  }
}

TEST(Catalogue, DatasheetFacts) {
  EXPECT_EQ(find_device("h100").bf16.value, 989.4e12);
  EXPECT_EQ(find_device("h100").device_link.value, 450e9);
  EXPECT_NEAR(find_device("h100").memory.value / kGiB, 79.1, 1e-9);
  EXPECT_NEAR(find_device("a100-40").memory.value / kGiB, 39.4, 1e-9);
  EXPECT_NEAR(find_device("a100-80").memory.value / kGiB, 79.3, 1e-9);
  EXPECT_NEAR(find_device("v100-32").memory.value / kGiB, 31.7, 1e-9);
  EXPECT_NEAR(find_device("mi300x").memory.value / kGiB, 191.7, 1e-9);
  EXPECT_EQ(find_device("v100").bf16.value, 0);
  EXPECT_EQ(find_device("v100").fp16.value, 125e12);
  EXPECT_EQ(find_device("t4").bf16.value, 0);
  EXPECT_EQ(find_device("a100").fp8.value, 0);
  EXPECT_EQ(find_device("a800").device_link.value, 200e9);
  EXPECT_EQ(find_device("l40s").device_link.value, 0);
}

TEST(Catalogue, AliasesAndSpellings) {
  const std::pair<const char*, const char*> cases[] = {
      {"H100", "h100-sxm-80"},
      {"h100-80GB SXM", "h100-sxm-80"},
      {"NVIDIA H100 80GB HBM3", "h100-sxm-80"},
      {"H100-96GB-HBM2e-500W", "h100-sxm-96"},
      {"a100-80gb sxm4", "a100-sxm-80"},
      {"NVIDIA A100-SXM4-40GB", "a100-sxm-40"},
      {"A100_PCIe", "a100-pcie-80"},
      {"NVIDIA A100-PCIE-40GB", "a100-pcie-40"},
      {"Tesla V100-SXM2-32GB", "v100-sxm-32"},
      {"V100-16GB", "v100-sxm-16"},
      {"A800-80GB", "a800-sxm-80"},
      {"H200-141GB", "h200-sxm-141"},
      {"8xH200 p5en", "h200-sxm-141"},
      {"GH200-SXM (96GB HBM3)", "gh200-96"},
      {"GB200", "gb200"},
      {"NVIDIA GeForce RTX 4090", "rtx-4090"},
      {"3090", "rtx-3090"},
      {"NVIDIA RTX A6000", "a6000"},
      {"AMD Instinct MI300X", "mi300x"},
      {"TPU v5p", "tpu-v5p"},
      {"cpu", "cpu"},
  };
  for (const auto& [written, name] : cases) EXPECT_EQ(find_device(written).name, name) << written;
}

TEST(Catalogue, UnknownDevicesNameTheNearest) {
  EXPECT_THAT(device_error("h1000"),
              AllOf(HasSubstr("unknown device \"h1000\""), HasSubstr("h100")));
  EXPECT_THAT(device_error("a100-60"), HasSubstr("a100-80"));
  EXPECT_THAT(device_error("mi300"), HasSubstr("mi300x"));
  EXPECT_THAT(device_error(""), HasSubstr("unknown device \"\""));
  EXPECT_THAT(device_error("h100 a100"), HasSubstr("unknown device"));
  EXPECT_THAT(device_error(std::string(100000, 'x')), HasSubstr("xxx..."));
  EXPECT_THAT(device_error("\x01\xff"), HasSubstr("\\x01\\xff"));
  EXPECT_THAT(device_error("NVIDIA"), HasSubstr("unknown device"));
  EXPECT_THAT(device_error("(x)"), HasSubstr("unknown device"));
}

TEST(Catalogue, PresetsAndDevicesHaveDifferentNames) {
  std::set<std::string> names;
  for (const HostPreset& preset : host_presets()) {
    SCOPED_TRACE(preset.name);
    std::vector<std::string> all = preset.aliases;
    all.push_back(preset.name);
    for (const std::string& name : all) EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(find_link(preset.host.nic_link).name, preset.host.nic_link);
    if (preset.device.empty()) {
      EXPECT_EQ(find_preset(preset.name), nullptr);
      continue;
    }
    EXPECT_EQ(find_preset(preset.name), &preset);
    EXPECT_EQ(find_device(preset.device).name, preset.device);
    for (const std::string& name : all)
      EXPECT_THAT(device_error(name), HasSubstr("unknown device"));
  }
  EXPECT_EQ(cluster_presets().front().devices_per_host, 8);
}

// One field of a CSV line that may hold quoted fields.
std::vector<std::string> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool in_quotes = false;
  for (const char c : line) {
    if (c == '"') {
      in_quotes = !in_quotes;
    } else if (c == ',' && !in_quotes) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

// Every device that a measured table names is in the catalogue; rows that name none are few and
// known.
TEST(Catalogue, MeasuredTablesResolve) {
  const std::filesystem::path folder =
      std::filesystem::path(MESHWRIGHT_REFERENCE_DATA) / "measured";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no reference data at " << folder;
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".csv") continue;
    const std::string text = read_file(file.path(), 64u << 20);
    std::size_t at = 0;
    std::vector<std::size_t> columns;
    for (std::size_t line = 0; at < text.size(); ++line) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const auto fields = csv_fields(std::string_view(text).substr(at, end - at));
      at = end + 1;
      for (std::size_t i = 0; i < fields.size() && line == 0; ++i) {
        if (fields[i] == "gpu" || fields[i] == "gpu_canon") columns.push_back(i);
      }
      for (const std::size_t i : columns) {
        if (line > 0 && i < fields.size()) names.insert(fields[i]);
      }
    }
  }
  EXPECT_GT(names.size(), 30u);
  for (const std::string& name : names) {
    if (name.starts_with("unknown") || name.starts_with("not stated")) {
      EXPECT_THAT(device_error(name), HasSubstr("unknown device"));
    } else {
      EXPECT_EQ(device_error(name), "no error") << name;
    }
  }
}

}  // namespace
}  // namespace meshwright
