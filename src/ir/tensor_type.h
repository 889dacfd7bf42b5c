#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "ir/dtype.h"

namespace meshwright {

/// One dimension of a logical tensor.
struct Dim {
  std::string name;  ///< What it ranges over: "batch", "seq", "hidden", "heads", "ffn", "vocab", …
  std::int64_t size = 1;  ///< Elements.
  std::int64_t unit = 1;  ///< Splits fall on multiples of this many elements (a flat heads*head_dim
                          ///< dimension has unit head_dim). Divides `size`.

  friend bool operator==(const Dim&, const Dim&) = default;
};

/// Element type and shape, outermost dimension first.
struct TensorType {
  DType dtype = DType::kBf16;
  std::vector<Dim> dims;

  int rank() const { return static_cast<int>(dims.size()); }
  /// Number of elements as a double: exact below 2^53, never overflows.
  double elements() const;
  Bytes bytes() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// "bf16[batch=8, seq=2048, heads=4096/128]" ("/128" is the unit when it is not 1).
std::string to_string(const TensorType& type);

/// Largest legal size of one dimension (2^40) and of a tensor (2^53 elements).
inline constexpr std::int64_t kMaxDimSize = std::int64_t{1} << 40;
inline constexpr double kMaxTensorElements = 9007199254740992.0;
/// Most dimensions of a tensor.
inline constexpr int kMaxRank = 8;

/// Throws Error when there are more than kMaxRank dims, a size is not in 1..kMaxDimSize, a unit
/// does not divide its size, or the tensor is too large. `where` names the tensor.
void check_tensor_type(const TensorType& type, const std::string& where);

}  // namespace meshwright
