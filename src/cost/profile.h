#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "cost/efficiency.h"
#include "plan/program.h"

namespace meshwright {

/// A measured time: the median of `repeats` runs, and by how much the middle half of them differ.
struct Measurement {
  Seconds seconds;
  Seconds spread;
  int repeats = 1;
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

/// What one device needs for the work of a signature (plan/signature.h), with what the analytic
/// model would go by.
struct MeasuredKernel {
  Measurement time;
  KernelClass kernel = KernelClass::kMemory;
  DType dtype = DType::kF32;
  bool backward = false;
  Flops flops;
  Bytes traffic, pointwise;
  int kernels = 1;
  MatmulShape matmul;

  /// An instruction that the analytic model prices as it would the one that was measured.
  Instr instr() const;
};
MeasuredKernel measured_kernel(const Instr& instr, const Measurement& time);

/// Times by size.
using MeasuredCurve = std::map<double, Measurement>;

/// What `meshwright profile` measured on one kind of device (docs/profile.md has the format).
struct ProfileTable {
  std::string device;  ///< What the machine calls itself.
  std::string dtype;   ///< Element type of the run: "float32", …
  int threads = 1;     ///< Per device.
  std::string host, date;
  std::map<std::string, MeasuredKernel, std::less<>> kernels;
  std::map<std::string, MeasuredCurve, std::less<>> curves;  ///< Of communication, by bytes.
};

Json profile_to_json(const ProfileTable& table);
/// Throws Error whose place is `source` and a JSON pointer: unknown keys, wrong types, numbers out
/// of range, two entries of one signature.
ProfileTable profile_from_json(const Json& json, std::string_view source);
ProfileTable read_profile(const std::filesystem::path& path);

/// Linear between the measured sizes, proportional below the smallest and above the largest, up to
/// a factor of two; nothing beyond.
std::optional<Seconds> interpolate(const MeasuredCurve& curve, Bytes bytes);

/// A profile while instructions are priced by it.
class ProfileUse {
 public:
  explicit ProfileUse(const ProfileTable& table) : table_(table) {}

  const ProfileTable& table() const { return table_; }
  /// How much longer kernels of a class take than the analytic model says, over all that the table
  /// has of it; of all classes where it has none, 1 where it has nothing.
  double ratio(KernelClass kernel, const DeviceKind& kind, const Efficiency& efficiency);

  /// Instructions priced so far, and how many of them by a measurement.
  void count(bool measured) { ++asked_, found_ += measured; }
  int asked() const { return asked_; }
  int found() const { return found_; }

 private:
  const ProfileTable& table_;
  std::map<std::pair<const DeviceKind*, KernelClass>, double> ratios_;
  int asked_ = 0, found_ = 0;
};

/// How many of a plan's instructions a profile priced.
struct ProfileCoverage {
  int measured = 0, all = 0;
};
/// "profiled: 312 of 330 instructions measured".
std::string to_string(const ProfileCoverage& coverage);

}  // namespace meshwright
